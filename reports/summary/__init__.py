"""What the report says, as values."""
