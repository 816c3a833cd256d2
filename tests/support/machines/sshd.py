"""A real OpenSSH server for tests, with host key, authorized keys and log of its own.

    with Sshd(folder) as sshd:                             # on this machine, for whoever runs the tests, loopback
    with Sshd(folder, machine=vm, address="0.0.0.0", port=22, users=("ubuntu",)) as sshd:

`sshd.logins()` counts what the server itself let in. Not covered: PAM, passwords, certificates.
"""

import contextlib
import getpass
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.faults import until
from tests.support.hosts.rank_pids import alive
from tests.support.machines.machine import WAIT_SEC, Machine
from tests.support.machines.ports import free_ports

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def keygen(path: Path, *, passphrase: str = "") -> Path:
    """A new key pair at `path` and `path`.pub; returns `path`."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, timeout=WAIT_SEC)
    return path


class Sshd:
    """A server in `folder`. `users` may log in with the keys given to `authorize`; None: whoever runs the tests."""

    def __init__(
        self,
        folder: Path,
        *,
        machine: Machine | None = None,
        address: str = "127.0.0.1",
        port: int | None = None,
        users: tuple[str, ...] | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        if SSHD is None:
            pytest.skip("sshd is not installed")
        self.folder, self.machine, self.address = folder, machine, address
        self.port = free_ports() if port is None else port
        self.users = (getpass.getuser(),) if users is None else users
        self.options = options
        self.log = folder / "sshd.log"
        self.host_key = folder / "host_key"
        self._process: subprocess.Popen[Any] | None = None

    def __enter__(self) -> Self:
        (self.folder / "authorized").mkdir(parents=True)
        keygen(self.host_key)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        lines = [
            f"Port {self.port}",
            f"ListenAddress {self.address}",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {self.folder}/authorized/%u",
            f"AllowUsers {' '.join(self.users)}",
            "PermitRootLogin prohibit-password",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PidFile none",
            "LogLevel VERBOSE",
            "MaxStartups 100",
            # The home of whoever runs the tests is not ours to write to, nor its .bashrc to be slowed by.
            *((f"SetEnv HOME={self.folder}",) if self.machine is None else ()),
            *self.options,
        ]
        config = self.folder / "sshd_config"
        config.write_text("".join(f"{line}\n" for line in lines))
        if self.machine is None and os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # the package's own folder, made by its service where that runs
        argv = [str(SSHD), "-D", "-f", str(config), "-E", str(self.log)]
        words = argv if self.machine is None else self.machine.argv(*argv)
        marked = self._said().count("Server listening")
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + WAIT_SEC
        while self._said().count("Server listening") == marked:
            assert self._process.poll() is None, f"sshd: {self._said()}"
            assert time.monotonic() < deadline, f"sshd is not up: {self._said()}"
            time.sleep(0.01)

    def stop(self) -> None:
        """The server and every session it serves, killed."""
        self.kill_sessions()
        if self._process is not None:
            pids = self._pids()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait(WAIT_SEC)
            self._process = None
            until(lambda: not alive(pids), "sshd to die", WAIT_SEC)  # its port is free when it is gone, and not before

    def kill_sessions(self) -> int:
        """Kill the server's side of every open connection; how many processes that were. What they ran lives on."""
        pids = [pid for pid in self._pids() if self._is_session(pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(pids)

    def new_host_key(self) -> None:
        """As after a reinstallation of the machine: the same address, another key."""
        self.stop()
        self.host_key.unlink()
        keygen(self.host_key)
        self.start()

    def authorize(self, key: Path, user: str | None = None) -> None:
        with (self.folder / "authorized" / (user or self.users[0])).open("a") as file:
            file.write(key.with_name(key.name + ".pub").read_text())

    def known_as(self, name: str) -> str:
        """The line of a known_hosts file for this server under that name."""
        kind, key = self.host_key.with_name("host_key.pub").read_text().split()[:2]
        return f"{name if self.port == 22 else f'[{name}]:{self.port}'} {kind} {key}\n"

    def fingerprint(self) -> str:
        said = subprocess.run(["ssh-keygen", "-lf", str(self.host_key)], capture_output=True, text=True, check=True)
        return said.stdout.split()[1]

    def logins(self) -> int:
        return len(re.findall(r"^Accepted publickey", self._said(), re.MULTILINE))

    def attempts(self) -> int:
        """Connections that got as far as trying to authenticate."""
        return len(re.findall(r"^(?:Accepted|Failed|Invalid user|User .* not allowed)", self._said(), re.MULTILINE))

    def _said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _pids(self) -> list[int]:
        """This server's processes: the listener and what descends from it while it is called sshd."""
        if self._process is None:
            return []
        parents: dict[int, int] = {}
        names: dict[int, str] = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                head, _, rest = (process / "stat").read_text(errors="replace").rpartition(")")
                parents[int(process.name)], names[int(process.name)] = int(rest.split()[1]), head.partition("(")[2]
        found = [self._process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid and names[child].startswith("sshd")]
        return found

    def _is_session(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            return line.startswith(b"sshd:") and b"[listener]" not in line
        return False
