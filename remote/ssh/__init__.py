"""A machine behind SSH, and bulk data to it."""
