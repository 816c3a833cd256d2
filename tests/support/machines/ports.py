"""Ports for servers that are yet to start."""

import contextlib
import random
import socket
from pathlib import Path

_LOWEST = 10_000
_OF_CLIENTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_FIRST_OF_CLIENTS = 32_768
_dice = random.SystemRandom()  # a test may have seeded the common one, and two test processes alike


def free_ports(count: int = 1) -> int:
    """The first of `count` neighbouring ports that nothing holds, on any address.

    Below those that the kernel gives to clients: between this look and the server's start, which may be half a minute
    of imports, a client of another test would take one of them, and hold it for a minute after its end (TIME_WAIT).
    """
    first_of_clients = _USUAL_FIRST_OF_CLIENTS
    with contextlib.suppress(OSError):
        first_of_clients = int(_OF_CLIENTS.read_text().split()[0])
    while True:
        first = _dice.randrange(_LOWEST, max(first_of_clients, 2 * _LOWEST) - count)
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("", port)))
            return first
