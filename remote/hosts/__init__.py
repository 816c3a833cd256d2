"""The host protocol, and this machine as a host.

bundle: sends our own modules to a host and runs them there
command: a command as a value, with its secrets masked
host: the protocol of every kind of host, and its errors
local: this machine as a host
process: runs one local program and pumps its streams
tempdirs: temporary folders that are removed even after a killed process
"""
