"""Trials of several ranks, on one machine or several."""
