"""A real OpenSSH server for tests, with its own host key, authorized keys and log.

    with Sshd(folder) as sshd:                             # on this machine's loopback, for the current user
    with Sshd(folder, machine=vm, address="0.0.0.0", port=22, users=("ubuntu",)) as sshd:

`sshd.logins()` counts the logins in the server's log. Not covered: PAM, passwords, certificates.
"""

import contextlib
import getpass
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.faults import wait_for
from tests.support.hosts.rank_pids import alive, descendant_pids
from tests.support.machines.machine import WAIT_SEC, Machine
from tests.support.machines.ports import free_ports

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def keygen(path: Path, *, passphrase: str = "") -> Path:
    """Create a key pair at `path` and `path`.pub; return `path`."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, timeout=WAIT_SEC)
    return path


@contextlib.contextmanager
def running_agent(path: Path, *keys: Path) -> Iterator[Path]:
    """Run an ssh-agent that listens at `path` and has these keys."""
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL) as agent:
        try:
            argv, environment = ("ssh-add", "-q", *map(str, keys)), {**os.environ, "SSH_AUTH_SOCK": str(path)}
            add_keys = lambda: subprocess.run(argv, env=environment, capture_output=True, check=False)  # noqa: E731
            wait_for(lambda: add_keys().returncode == 0, "the agent")  # its socket exists before it listens
            yield path
        finally:
            agent.terminate()


class Sshd:
    """Server in `folder`. `users` (None: the current user) may log in with the keys passed to `authorize`."""

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
            *self.options,  # first, because sshd takes the first value of an option
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
            # Tests must not write to the current user's home, and its .bashrc may be slow.
            *((f"SetEnv HOME={self.folder}",) if self.machine is None else ()),
        ]
        config = self.folder / "sshd_config"
        config.write_text("".join(f"{line}\n" for line in lines))
        if self.machine is None and os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # normally created by the package's service
        argv = [str(SSHD), "-D", "-f", str(config), "-E", str(self.log)]
        full_argv = argv if self.machine is None else self.machine.argv(*argv)
        starts = self._log_text().count("Server listening")
        self._process = subprocess.Popen(full_argv, stdin=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + WAIT_SEC
        while self._log_text().count("Server listening") == starts:
            assert self._process.poll() is None, f"sshd: {self._log_text()}"
            assert time.monotonic() < deadline, f"sshd did not start: {self._log_text()}"
            time.sleep(0.01)

    def stop(self) -> None:
        """Kill the server and all its sessions."""
        self.kill_sessions()
        if self._process is not None:
            pids = self._pids()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait(WAIT_SEC)
            self._process = None
            wait_for(lambda: not alive(pids), "sshd to die", WAIT_SEC)  # frees its port

    def kill_sessions(self) -> int:
        """Kill the server's side of every open connection; return their number. Commands in sessions keep running."""
        pids = [pid for pid in self._pids() if self._is_session(pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(pids)

    def replace_host_key(self) -> None:
        """Restart with a new host key, as after a reinstallation of the machine."""
        self.stop()
        self.host_key.unlink()
        keygen(self.host_key)
        self.start()

    def authorize(self, key: Path, user: str | None = None) -> None:
        with (self.folder / "authorized" / (user or self.users[0])).open("a") as file:
            file.write(key.with_name(key.name + ".pub").read_text())

    def known_hosts_line(self, name: str) -> str:
        """Return the known_hosts line of this server under a name."""
        kind, key = self.host_key.with_name("host_key.pub").read_text().split()[:2]
        return f"{name if self.port == 22 else f'[{name}]:{self.port}'} {kind} {key}\n"

    def fingerprint(self) -> str:
        listed = subprocess.run(["ssh-keygen", "-lf", str(self.host_key)], capture_output=True, text=True, check=True)
        return listed.stdout.split()[1]

    def logins(self) -> int:
        return len(re.findall(r"^Accepted publickey", self._log_text(), re.MULTILINE))

    def attempts(self) -> int:
        """Count the connections that have tried to authenticate."""
        return len(re.findall(r"^(?:Accepted|Failed|Invalid user|User .* not allowed)", self._log_text(), re.MULTILINE))

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _pids(self) -> list[int]:
        """Return the pids of the listener and of its descendants named sshd."""
        tree = [] if self._process is None else [self._process.pid, *descendant_pids(self._process.pid)]
        return [pid for pid in tree if self._command_line(pid)[0].rpartition(b"/")[2].startswith(b"sshd")]

    def _is_session(self, pid: int) -> bool:
        line = b" ".join(self._command_line(pid))
        return line.startswith(b"sshd:") and b"[listener]" not in line

    def _command_line(self, pid: int) -> list[bytes]:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return [b""]
