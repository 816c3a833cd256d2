"""The GPU and the host: what they are, and what they do during a trial."""
