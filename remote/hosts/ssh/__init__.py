"""A machine behind SSH as a host.

auth: selects the keys offered to a hop, checks its own against known_hosts
config: reads the user's ssh configuration, and finds the jump hosts
connection: opens one strict connection for each hop, which sends a channel's messages in order
host: opens the connection and runs commands on it
"""
