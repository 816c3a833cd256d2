"""Machines for tests: namespaces of this one with their own network, mounts, /etc, /run, /mnt and processes.

    with Machine("vm", folder, own_pids=True) as vm, Machine("laptop", folder) as laptop:
        with Link(laptop, "10.79.0.1", vm, "10.79.0.2") as link:
            vm.run("ip", "addr")
            link.cut("drop")

Files outside /etc, /run and /mnt are this machine's, so programs and test folders have the same paths. This machine
does not change: addresses, firewall rules, users and mounts exist only in the namespaces and disappear with their first
process, which the kernel kills when the test process dies. Needs Linux, root and the programs in `NEEDED`; `require()`
skips a test if one is missing.

Not covered: another kernel, another clock, a failing disk.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import pytest

NEEDED = ("unshare", "nsenter", "setpriv", "ip", "iptables", "tini", "mkfs.ext4")
WAIT_SEC = 60.0
SOCKETS_ONLY = {  # NCCL's variables, so that ranks of one host exchange like those of two
    "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0",
    "NCCL_NET": "Socket",
}  # fmt: skip
_CLONE_NEWNET = 0x40000000
_SETUP = """
set -e
folder=$1; name=$2
mount --make-rprivate /
mount --bind "$folder/etc" /etc
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /run/sshd /run/lock
hostname "$name"
ip link set lo up
touch "$folder/ready"
exec tini -s -- sleep infinity
"""


def require(*programs: str) -> None:
    """Skip the test, with the reason, if machines cannot be created or one of these programs is missing."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("machines for tests are namespaces: they need Linux and root")
    for program in (*NEEDED, *programs):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    trial = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, text=True, check=False
    )
    if trial.returncode != 0:
        pytest.skip(f"cannot create namespaces: {trial.stderr.strip()}")


class Machine:
    """One machine. `folder`/`name` contains its /etc, homes and logs; other users need access to it.

    With `own_pids` it has its own process ids, and its processes end with it; without, the test can signal a process
    started by `start` directly.
    """

    def __init__(self, name: str, folder: Path, *, own_pids: bool = False) -> None:
        self.name, self.folder, self.own_pids = name, folder / name, own_pids
        self._init: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[Any]] = []
        self.pid = 0

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        (self.folder / "home").mkdir()
        shutil.copytree("/etc", self.folder / "etc", symlinks=True, ignore_dangling_symlinks=True)
        (self.folder / "etc" / "nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
        (self.folder / "etc" / "hosts").write_text(f"127.0.0.1 localhost {self.name}\n::1 localhost\n")
        pid_flags = ("--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc") if self.own_pids else ()
        ready = self.folder / "ready"
        # The kernel kills it with this test process, so a killed pytest leaves no machine behind.
        argv = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--uts", *pid_flags)
        setup = ("sh", "-c", _SETUP, "sh", str(self.folder), self.name)
        self._init = subprocess.Popen([*argv, *setup], stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + WAIT_SEC
        while not ready.exists():
            if self._init.poll() is not None or time.monotonic() > deadline:
                self._init.kill()
                self._init.wait(WAIT_SEC)
                raise AssertionError(f"{self.name}: could not be set up within {WAIT_SEC:.0f} s")
            time.sleep(0.01)
        self.pid = self._init.pid
        if self.own_pids:
            self.pid = int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all processes and remove the network; the folder stays."""
        assert self._init is not None
        pids = [self.pid] if self.own_pids else self._pids()
        # The first process's pid is valid until we collect it; afterwards another process may get it.
        for pid in pids if self._init.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in (self._init, *self._started):
            process.wait(WAIT_SEC)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def argv(self, *command: str, user: str | None = None, cwd: str | Path = "/") -> list[str]:
        """Return the argv that runs `command` on this machine, as root or as `user` (with groups and HOME)."""
        pid_flags = ("--pid",) if self.own_pids else ()
        enter = ("nsenter", "--target", str(self.pid), "--net", "--mount", "--uts", *pid_flags, "--")
        become = () if user is None else ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups")
        home = () if user is None else (f"HOME={self.home(user)}", f"USER={user}")
        # nsenter changes the working directory to the machine's root.
        return [*enter, *become, "env", f"--chdir={cwd}", *home, *command]

    def run(self, *command: str, user: str | None = None, check: bool = True, **options: Any) -> Any:
        """Run a command; return its CompletedProcess with text. With `check`, asserts exit code 0."""
        options = {"stdin": subprocess.DEVNULL, "timeout": WAIT_SEC, **options}
        argv = self.argv(*command, user=user, cwd=options.pop("cwd", "/"))
        if "input" in options:
            del options["stdin"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, **options)
        assert not check or done.returncode == 0, (
            f"{self.name}: {command}: {done.returncode}: {done.stdout}{done.stderr}"
        )
        return done

    def start(self, *command: str, user: str | None = None, log: str = "", **options: Any) -> subprocess.Popen[Any]:
        """Start a command; `log` names a file in the machine's folder for its output."""
        argv = self.argv(*command, user=user, cwd=options.pop("cwd", "/"))
        if not log:
            process = subprocess.Popen(argv, **options)
        else:
            with (self.folder / log).open("ab") as file:
                options = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, **options}
                process = subprocess.Popen(argv, **options)
        self._started.append(process)
        return process

    def add_user(self, name: str, *, uid: int = 4711) -> None:
        """Add a user who may log in only by key."""
        etc, home = self.folder / "etc", self.home(name)
        with (etc / "passwd").open("a") as file:
            file.write(f"{name}:x:{uid}:{uid}:test:{home}:/bin/bash\n")
        with (etc / "shadow").open("a") as file:
            file.write(f"{name}:*:19000:0:99999:7:::\n")
        with (etc / "group").open("a") as file:
            file.write(f"{name}:x:{uid}:\n")
        home.mkdir(mode=0o755)
        os.chown(home, uid, uid)

    def home(self, user: str) -> Path:
        return self.folder / "home" / user

    def add_names(self, **addresses: str) -> None:
        """Add names to the machine's hosts file; `_` in a name stands for `.`."""
        with (self.folder / "etc" / "hosts").open("a") as file:
            file.writelines(f"{address} {name.replace('_', '.')}\n" for name, address in addresses.items())

    def mount_small_disk(self, path: str, *, megabytes: int, owner: str) -> None:
        """Mount a small file system at `path` on this machine: a loop device, which returns ENOSPC when full."""
        image = self.folder / f"disk-{len(list(self.folder.glob('disk-*')))}.img"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        self.run("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(image))
        self.run("mkdir", "-p", path)
        self.run("mount", "-o", "loop", str(image), path)
        self.run("chown", owner, path)

    @contextlib.contextmanager
    def network_of_this_thread(self) -> Iterator[None]:
        """Move this thread into this machine's network: new sockets, threads and programs use it."""
        with open("/proc/thread-self/ns/net", "rb") as before, open(f"/proc/{self.pid}/ns/net", "rb") as target:
            _set_network(target.fileno())
            try:
                yield
            finally:
                _set_network(before.fileno())

    def _pids(self) -> list[int]:
        """Return the pids of all processes in this machine's network, except the test process."""
        pids: list[int] = []
        try:
            network = Path(f"/proc/{self.pid}/ns/net").readlink()
        except OSError:  # the first process is dead, and so are all others
            return pids
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "ns" / "net").readlink() == network and int(process.name) != os.getpid():
                    pids.append(int(process.name))
        return pids


class Link:
    """Cable between two machines; each end has an address of a /24 and a network card named after the other end."""

    def __init__(self, machine: Machine, address: str, other: Machine, other_address: str) -> None:
        self.one, self.address, self.other, self.other_address = machine, address, other, other_address
        self.card, self.other_card = f"to-{other.name}"[:15], f"to-{machine.name}"[:15]
        self._is_cut = False

    def __enter__(self) -> Self:
        peer = ("type", "veth", "peer", "name", self.other_card, "netns", str(self.other.pid))
        # Not with `run`: the other machine's pid is valid only in this machine's pid namespace.
        subprocess.run(
            ["nsenter", "--target", str(self.one.pid), "--net", "ip", "link", "add", self.card, *peer],
            check=True,
            timeout=WAIT_SEC,
        )
        for machine, card, address in self._ends():
            machine.run("ip", "addr", "add", f"{address}/24", "dev", card)
            machine.run("ip", "link", "set", card, "up")
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the cable disappears with the machines."""

    def cut(self, how: Literal["down", "drop"]) -> None:
        """Cut the cable. `down`: switch off the first machine's card. `drop`: drop all packets silently."""
        self._is_cut = True
        if how == "down":
            self.one.run("ip", "link", "set", self.card, "down")
            return
        for chain, flag in (("INPUT", "-i"), ("OUTPUT", "-o"), ("FORWARD", "-i"), ("FORWARD", "-o")):
            self.other.run("iptables", "-w", "-I", chain, flag, self.other_card, "-j", "DROP")

    def repair(self) -> None:
        """Undo every cut."""
        if not self._is_cut:
            return
        self.one.run("ip", "link", "set", self.card, "up")
        for chain, flag in (("INPUT", "-i"), ("OUTPUT", "-o"), ("FORWARD", "-i"), ("FORWARD", "-o")):
            rule = (chain, flag, self.other_card, "-j", "DROP")
            while self.other.run("iptables", "-w", "-D", *rule, check=False).returncode == 0:
                pass
        self._is_cut = False

    def _ends(self) -> tuple[tuple[Machine, str, str], tuple[Machine, str, str]]:
        return (self.one, self.card, self.address), (self.other, self.other_card, self.other_address)


def _set_network(handle: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
