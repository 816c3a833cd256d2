"""Two runs: may they be compared, and what differs."""
