"""What may be set, and where each value comes from.

sections  every setting: type, range, default
layers    the files, environment and flags that settings come from
load      merges the layers and checks them: the settings that count
"""
