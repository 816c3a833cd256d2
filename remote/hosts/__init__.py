"""What a host is, and this machine as one.

command: a command as a value, with its secrets masked
delivery: how our own files get to a host and run there
host: the protocol that every kind of host speaks, and its errors
local: this machine as a host
process: runs one local program and pumps its streams
scratch: temporary folders that a killed process does not leave for ever
"""
