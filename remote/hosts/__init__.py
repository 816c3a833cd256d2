"""The protocol Host, and this machine as a host."""
