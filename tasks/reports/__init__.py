"""`inv report` and `inv compare`."""
