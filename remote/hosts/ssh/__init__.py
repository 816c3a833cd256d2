"""A machine behind SSH as a host.

auth: selects the keys offered to a hop
config: reads the user's ssh configuration, and finds the jump hosts
connection: opens one strict connection for each hop
host: opens the connection and runs commands on it
known_hosts: reads the keys that a host may have
session: one command on an open connection
transport: a connection that sends a channel's messages in order
"""
