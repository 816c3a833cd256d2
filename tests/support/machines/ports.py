"""Free ports for servers that a test will start."""

import contextlib
import random
import socket
from pathlib import Path

_MIN_PORT = 10_000
_CLIENT_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_FIRST_CLIENT_PORT = 32_768
_random = random.SystemRandom()  # tests may seed the global generator, even identically in two processes


def free_ports(count: int = 1) -> int:
    """Return the first of `count` consecutive ports that are free on all addresses.

    They are below the kernel's ports for clients: before the server's start, which may take half a minute of imports, a
    client of another test could take such a port and block it for a minute after its end (TIME_WAIT).
    """
    first_of_clients = _DEFAULT_FIRST_CLIENT_PORT
    with contextlib.suppress(OSError):
        first_of_clients = int(_CLIENT_PORT_RANGE.read_text().split()[0])
    while True:
        first = _random.randrange(_MIN_PORT, max(first_of_clients, 2 * _MIN_PORT) - count)
        with contextlib.suppress(OSError), contextlib.ExitStack() as sockets:
            for port in range(first, first + count):
                sockets.enter_context(socket.create_server(("", port)))
            return first
