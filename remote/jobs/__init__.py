"""Detached jobs and verified files on any host."""
