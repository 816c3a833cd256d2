"""Settings of the project and where their values come from.

schema   every setting: type, range, default
sources  files and environment variables as layers of settings
load     merges and validates the layers
"""
