"""One trial's process: its record, its ends, its progress."""
