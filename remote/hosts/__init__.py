"""Hosts: the protocol, and one connector for each kind.

host_protocol: the protocol of every kind of host, and its errors
bundle: sends our own modules to a host and runs them there
command: a command as a value, with its secrets masked
connectors: registers the kinds of hosts that a fleet may have
local: this machine as a host
pods: a pod as a host, by `kubectl exec`
local_program: runs one local program and pumps its streams
ssh: a machine behind SSH as a host
"""
