"""As root: a second container engine with its data on a share that engines cannot use directly.

    python -c THIS '{"file": ".../engine.ext4", "owner": UID, "size_bytes": N, "mount": "...", "socket": "...",
                    "log": "...", "group": "docker"}'

Loop-mounts an ext4 file system in one file on the share; a second dockerd keeps its data there. What is there already
stays, so the same call brings everything back after a reboot. Answers in one JSON line, or with the reason on standard
error and exit code 3, or 4 for what another user may have put there.

Whoever can write an engine's data is root on its machine. So the file is used only if root made it, in a folder that is
`owner`'s alone, and from its check to the loop device it is one open file, whatever happens to its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

UP_SEC = 60.0
LOOP_SET_FD, LOOP_CLR_FD, LOOP_CTL_GET_FREE = 0x4C00, 0x4C01, 0x4C82  # linux/loop.h


class ForeignContainer(Exception):
    """Another user made it or may change it; the message names path and owner."""


class EngineRefused(Exception):
    """It cannot be done; the message says why and what to do."""


def main() -> int:
    asked = json.loads(sys.argv[1])
    try:
        if os.geteuid() != 0:
            raise EngineRefused(
                "an engine of its own needs root: let this user run `sudo -n python3`, or log in as root"
            )
        for program in ("dockerd", "mkfs.ext4", "mount"):
            if shutil.which(program) is None:
                raise EngineRefused(f"{program}: not found; apt-get install docker.io e2fsprogs mount")
        file, folder = Path(asked["file"]), opened(Path(asked["file"]).parent, asked["owner"])
        made = make_disk(file, folder, asked["size_bytes"])
        mount(file, folder, Path(asked["mount"]))
        started = not answers(asked["socket"])
        if started:
            start(asked)
    except (EngineRefused, ForeignContainer, OSError, subprocess.CalledProcessError) as error:
        stderr = getattr(error, "stderr", None) or b""
        sys.stderr.write(f"{error} {stderr.decode(errors='replace').strip()}".strip() + "\n")
        return 4 if isinstance(error, ForeignContainer) else 3
    room = os.statvfs(asked["mount"])
    facts = {"made": made, "started": started, "free_bytes": room.f_bavail * room.f_frsize}
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


def opened(folder: Path, owner: int) -> int:
    """The folder of the file, if it is `owner`'s or root's alone."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError:
        raise ForeignContainer(
            f"{folder}: is no folder, made by uid {folder.lstat().st_uid}; look at it and remove it"
        ) from None
    seen = os.fstat(handle)
    if seen.st_uid not in (0, owner) or seen.st_mode & 0o077:
        raise ForeignContainer(
            f"{folder}: of uid {seen.st_uid}, mode {seen.st_mode & 0o7777:04o}: others may change what is in it"
        )
    return handle


def make_disk(file: Path, folder: int, size_bytes: int) -> bool:
    """Make the file system in its file, once. The file is sparse: it takes from the share only what it holds."""
    with contextlib.suppress(FileNotFoundError):
        os.stat(file.name, dir_fd=folder, follow_symlinks=False)
        return False
    room = os.fstatvfs(folder)
    free = room.f_bavail * room.f_frsize
    if free < size_bytes:
        raise EngineRefused(
            f"{file.parent}: {free / 1e9:.1f} GB free, {size_bytes / 1e9:.1f} GB asked for; name a smaller size"
        )
    part = f"{file.name}.part"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part, dir_fd=folder)
    try:
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        try:
            os.ftruncate(handle, size_bytes)
            run("mkfs.ext4", "-q", "-F", "-m", "0", f"/proc/self/fd/{handle}", keep=(handle,))
            os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(part, file.name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=folder)
    return True


def mount(file: Path, folder: int, at: Path) -> None:
    """Mount the file, unless it is mounted. Nothing in it counts as a device or as a program of another user."""
    at.mkdir(parents=True, exist_ok=True)
    if os.path.ismount(at):
        return
    try:
        handle = os.open(file.name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        owner = os.stat(file.name, dir_fd=folder, follow_symlinks=False).st_uid
        raise ForeignContainer(
            f"{file}: cannot be opened ({error.strerror}), made by uid {owner}; look at it and remove it"
        ) from None
    try:
        check_disk(file, os.fstat(handle))
        os.fchmod(handle, 0o600)
        control = os.open("/dev/loop-control", os.O_RDWR)
        try:
            device = f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}"
        finally:
            os.close(control)
        loop = os.open(device, os.O_RDWR)
        try:
            fcntl.ioctl(loop, LOOP_SET_FD, handle)
            try:
                run("mount", "-o", "nosuid,nodev", device, str(at))
            finally:
                fcntl.ioctl(loop, LOOP_CLR_FD)  # of a mounted device: once it is unmounted
        finally:
            os.close(loop)
    finally:
        os.close(handle)


def check_disk(file: Path, seen: os.stat_result) -> None:
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid != 0 or seen.st_nlink != 1 or seen.st_mode & 0o022:
        raise ForeignContainer(
            f"{file}: of uid {seen.st_uid}, mode {seen.st_mode & 0o7777:04o}, {seen.st_nlink} names: not a file that "
            "root alone can change; look at it and remove it"
        )


def start(asked: dict[str, Any]) -> None:
    """Start dockerd detached: under systemd if it runs, otherwise in a session of its own."""
    folder, name = Path(asked["mount"]), Path(asked["socket"]).stem
    for below in ("data", "tmp"):
        (folder / below).mkdir(exist_ok=True)
    daemon = (
        *("dockerd", "--data-root", str(folder / "data"), "--exec-root", f"/run/{name}"),
        *("--pidfile", f"/run/{name}.pid"),
        *("-H", f"unix://{asked['socket']}", "-G", asked["group"]),
        # Networks and firewall rules are left to the first engine: two engines would overwrite each other's.
        *("--bridge=none", "--iptables=false", "--ip-masq=false"),
    )
    variables = {"DOCKER_TMPDIR": str(folder / "tmp")}
    if Path("/run/systemd/system").is_dir() and shutil.which("systemd-run"):
        words = (f"--setenv={key}={value}" for key, value in variables.items())
        run("systemd-run", f"--unit={name}", "--collect", *words, *daemon)
    else:
        with Path(asked["log"]).open("ab") as log:
            subprocess.Popen(
                daemon,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **variables},
                start_new_session=True,
            )
    deadline = time.monotonic() + UP_SEC
    while not answers(asked["socket"]):
        if time.monotonic() > deadline:
            raise EngineRefused(
                f"dockerd does not answer at {asked['socket']} after {UP_SEC:.0f} s; see {asked['log']}"
            )
        time.sleep(0.1)


def answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as engine:
        engine.settimeout(5.0)
        try:
            engine.connect(path)
            engine.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in engine.recv(64)
        except OSError:
            return False


def run(*words: str, keep: tuple[int, ...] = ()) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=600, pass_fds=keep)


if __name__ == "__main__":
    sys.exit(main())
