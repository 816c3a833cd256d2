"""`python -m bench`: its commands and flags."""
