"""A machine behind SSH as a host.

auth: selects the keys offered to a hop
config: reads the user's ssh configuration, and finds the jump hosts
connection: opens one strict connection for each hop, which sends a channel's messages in order
host: opens the connection and runs commands on it
known_hosts: checks host keys against those in known_hosts
session: one command on an open connection
"""
