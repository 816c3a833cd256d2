"""`inv bench`, `cancel`, `monitor` and `collect`."""
