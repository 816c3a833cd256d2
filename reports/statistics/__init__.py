"""From steps to intervals: over one process, several processes, two configurations."""
