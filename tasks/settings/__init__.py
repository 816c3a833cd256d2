"""Settings of the project and where their values come from.

sections  the sections and all settings; each is declared in the module that uses it
sources   the files of settings, with the line of each value
layers    merges files, variables and flags, and validates the result
"""
