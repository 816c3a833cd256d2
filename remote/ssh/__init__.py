"""A machine behind SSH as a host, and gigabytes to it.

bulk: folders by rsync or tar over the OpenSSH client
config: the user's ssh configuration, and the servers on the way
connection: opens one strict connection for each hop
host: runs commands on an open connection
known_hosts: which keys a host may show
transport: a connection whose channels end in order
"""
