"""Settings of the project and where their values come from.

sections     the sections and all settings; each is declared in the module that uses it
sources      files and environment variables as layers of settings
layers       merges and validates the layers
user_config  writes settings to ~/.invoke.yaml, and files that only their owner may read
"""
