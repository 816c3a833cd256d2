"""Cost of SSH: a warm command and a new connection, each against its lower bound on the same server."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.records.bootstrap import Interval, summarize
from remote.hosts.command import Command
from remote.hosts.ssh.host import SshHost
from tests.benchmarks import Figure, print_figures, seconds, spread
from tests.support.machines.ssh_client import SshClient
from tests.support.machines.sshd import Sshd

ROUNDS = 40


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory() as made, Sshd(Path(made) / "server") as sshd:
        (Path(made) / "client").mkdir()
        ssh_client = SshClient(Path(made) / "client", sshd)
        with SshHost(name="vm", destination=ssh_client.destination(), workdir=made, python=(sys.executable,)) as host:
            true = Command(argv=("true",))

            def bare() -> None:
                """Run the same program on the same connection without our code."""
                channel = host.connect().transport.open_session()
                channel.exec_command("true")
                channel.recv_exit_status()
                channel.close()

            def warm() -> None:
                host.run(true, timeout_sec=60.0)

            def reconnect() -> None:
                with SshHost(name="vm", destination=ssh_client.destination(), workdir=made) as other:
                    other.connect()

            def openssh() -> None:
                argv = ("ssh", "-F", str(ssh_client.config), "vm", "true")
                subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)

            bare()
            warm_ms, bare_ms = _pairs(warm, bare)
            reconnect_ms, openssh_ms = _pairs(reconnect, openssh)
    return [
        Figure(name="SSH: warm command", value=spread(warm_ms, "ms"), ratio=_times(warm_ms, bare_ms), goal="15 ms"),
        Figure(name="SSH: the same, bare", value=spread(bare_ms, "ms")),
        Figure(name="SSH: new connection", value=spread(reconnect_ms, "ms"), ratio=_times(reconnect_ms, openssh_ms)),
        Figure(name="SSH: `ssh vm true`", value=spread(openssh_ms, "ms")),
    ]


def _pairs(ours: Callable[[], None], least: Callable[[], None]) -> tuple[Interval, Interval]:
    times = [(1000 * seconds(ours), 1000 * seconds(least)) for _ in range(ROUNDS)]
    return summarize([pair[0] for pair in times]), summarize([pair[1] for pair in times])


def _times(ours: Interval, least: Interval) -> str:
    return f"{ours.median / least.median:.2g} x the least"


if __name__ == "__main__":
    print_figures(main())
