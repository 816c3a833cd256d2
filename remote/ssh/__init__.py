"""A machine behind SSH as a host, and gigabytes to it.

bulk: folders by rsync or tar over the OpenSSH client
config: the user's ssh configuration, and the servers on the way
connection: opens one strict connection for each hop
host: opens the connection and runs commands on it
keys: which of our keys are offered to a hop
known_hosts: which keys a host may show
session: one command on an open connection
transport: a connection whose channels end in order
"""
