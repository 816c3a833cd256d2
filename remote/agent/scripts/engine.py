"""Program that starts, as root, a second container engine with its data on a share that engines cannot use directly.

    python -c THIS '{"file": ".../engine.ext4", "owner": UID, "size_bytes": N, "is_size_given": false, "mount": "...",
                    "socket": "...", "log": "...", "group": "docker", "bridge": "..."}'

Loop-mounts an ext4 file system that is one file on the share; a second dockerd stores its data there. Existing parts
are kept, so the same command restores everything after a reboot. Prints one JSON line, or the cause on standard error
with exit code 3, or 4 if another user may have created a path.

A user who can write an engine's data is root on its machine. The file is therefore used only if root created it, in a
folder that only `owner` can change. It stays open from the check to the setup of the loop device, so that it cannot be
exchanged by renaming.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

START_TIMEOUT_SEC = 60.0
# A network of documentation addresses (RFC 5737), which no route uses: builds run in the host's network or in none.
BRIDGE_ADDRESS = "198.51.100.1/30"


class ForeignOwner(Exception):
    """Error raised for a path that another user created or may change; the message has path and owner."""


class EngineSetupError(Exception):
    """Error raised if the engine cannot be set up; the message has cause and remedy."""


def main() -> int:
    request = json.loads(sys.argv[1])
    try:
        if os.geteuid() != 0:
            raise EngineSetupError(
                "a separate engine needs root; allow this user to run `sudo -n python3`, or log in as root"
            )
        for program in ("dockerd", "ip", "mkfs.ext4", "mount"):
            if shutil.which(program) is None:
                raise EngineSetupError(f"{program}: not found; apt-get install docker.io e2fsprogs iproute2 mount")
        file, folder = Path(request["file"]), open_folder(Path(request["file"]).parent, request["owner"])
        check_mounted(file, Path(request["mount"]))
        created = create_disk(file, folder, request["size_bytes"], is_size_given=request["is_size_given"])
        mount(file, folder, Path(request["mount"]))
        started = not is_engine_up(request["socket"])
        if started:
            start_engine(request)
    except (EngineSetupError, ForeignOwner, OSError, subprocess.CalledProcessError) as error:
        stderr = getattr(error, "stderr", None) or b""
        sys.stderr.write(f"{error} {stderr.decode(errors='replace').strip()}".strip() + "\n")
        return 4 if isinstance(error, ForeignOwner) else 3
    filesystem = os.statvfs(request["mount"])
    facts = {"made": created, "started": started, "free_bytes": filesystem.f_bavail * filesystem.f_frsize}
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


def open_folder(folder: Path, owner: int) -> int:
    """Open the folder of the file after checking that only `owner` or root can change it."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError as error:
        raise ForeignOwner(
            f"{folder}: is not a folder, created by uid {folder.lstat().st_uid}; check and remove it"
        ) from error
    status = os.fstat(handle)
    if status.st_uid not in (0, owner) or status.st_mode & 0o077:
        raise ForeignOwner(
            f"{folder}: owned by uid {status.st_uid}, mode {status.st_mode & 0o7777:04o}: other users may change it"
        )
    return handle


def check_mounted(file: Path, mount_point: Path) -> None:
    """Check that `file`, and no other, is mounted if anything is. Raises EngineSetupError."""
    if not os.path.ismount(mount_point):
        return
    device = mount_point.stat().st_dev
    try:
        backing = (
            Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/loop/backing_file").read_text().rstrip("\n")
        )
    except OSError:
        backing = "another disk"
    if not (file.exists() and os.path.realpath(file) == backing):
        folder = shlex.quote(str(Path(backing).parent.parent))
        raise EngineSetupError(
            f"{mount_point}: {backing} is mounted there, not {file}; use --tmpdir {folder}, or stop that engine and "
            f"unmount its data on the VM: sudo umount {shlex.quote(str(mount_point))}"
        )


def create_disk(file: Path, folder: int, size_bytes: int, *, is_size_given: bool) -> bool:
    """Create the file with its file system if missing. The file is sparse: it only uses the space of its content."""
    with contextlib.suppress(FileNotFoundError):
        existing = os.stat(file.name, dir_fd=folder, follow_symlinks=False)
        if is_size_given and existing.st_size != size_bytes:
            raise EngineSetupError(
                f"{file}: already there with {existing.st_size / 1e9:.1f} GB, --size-gb says {size_bytes / 1e9:.1f}; "
                "omit --size-gb, or remove the file on the VM, and the engine's images with it"
            )
        return False
    filesystem = os.fstatvfs(folder)
    free = filesystem.f_bavail * filesystem.f_frsize
    if free < size_bytes:
        raise EngineSetupError(
            f"{file.parent}: {free / 1e9:.1f} GB free, {size_bytes / 1e9:.1f} GB requested; request a smaller size"
        )
    part = f"{file.name}.part"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part, dir_fd=folder)
    try:
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        try:
            os.ftruncate(handle, size_bytes)
            run("mkfs.ext4", "-q", "-F", "-m", "0", f"/proc/self/fd/{handle}", pass_fds=(handle,))
            os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(part, file.name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=folder)
    return True


def mount(file: Path, folder: int, mount_point: Path) -> None:
    """Mount the file unless it is mounted, with nosuid and nodev."""
    mount_point.mkdir(parents=True, exist_ok=True)
    if os.path.ismount(mount_point):
        return
    try:
        handle = os.open(file.name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        owner = os.stat(file.name, dir_fd=folder, follow_symlinks=False).st_uid
        raise ForeignOwner(
            f"{file}: cannot be opened ({error.strerror}), created by uid {owner}; check and remove it"
        ) from error
    try:
        check_disk(file, os.fstat(handle))
        os.fchmod(handle, 0o600)
        attach = ("losetup", "--find", "--show", f"/proc/self/fd/{handle}")
        device = run(*attach, pass_fds=(handle,)).stdout.decode().strip()
        try:
            run("mount", "-o", "nosuid,nodev", device, str(mount_point))
        finally:
            run("losetup", "--detach", device)  # takes effect when the device is unmounted
    finally:
        os.close(handle)


def check_disk(file: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != 0 or status.st_nlink != 1 or status.st_mode & 0o022:
        raise ForeignOwner(
            f"{file}: owned by uid {status.st_uid}, mode {status.st_mode & 0o7777:04o}, {status.st_nlink} names: not a "
            "file that only root can change; check and remove it"
        )


def create_bridge(name: str) -> None:
    """Create the engine's own network bridge if missing.

    Without one (`--bridge=none`) a starting dockerd deletes docker0, which the VM's own engine uses.
    """
    if name not in (interface for _, interface in socket.if_nameindex()):
        run("ip", "link", "add", name, "type", "bridge")
    run("ip", "address", "replace", BRIDGE_ADDRESS, "dev", name)


def start_engine(request: dict[str, Any]) -> None:
    """Start dockerd detached: as a systemd unit if systemd runs, otherwise in a new session."""
    create_bridge(request["bridge"])
    # From Docker 27 on the engine also manages IPv6 rules by default; versions before 20.10 do not know the option.
    options = subprocess.run(("dockerd", "--help"), capture_output=True, check=True, timeout=60).stdout
    ipv6 = ("--ip6tables=false",) if b"--ip6tables" in options else ()
    folder, name = Path(request["mount"]), Path(request["socket"]).stem
    for subfolder in ("data", "tmp"):
        (folder / subfolder).mkdir(exist_ok=True)
    daemon = (
        *("dockerd", "--data-root", str(folder / "data"), "--exec-root", f"/run/{name}"),
        *("--pidfile", f"/run/{name}.pid"),
        *("-H", f"unix://{request['socket']}", "-G", request["group"]),
        # Only the first engine manages networks and firewall rules: two engines would overwrite each other's.
        *("--bridge", request["bridge"], "--iptables=false", *ipv6, "--ip-masq=false", "--ip-forward=false"),
    )
    variables = {"DOCKER_TMPDIR": str(folder / "tmp")}
    if Path("/run/systemd/system").is_dir() and shutil.which("systemd-run"):
        assignments = (f"--setenv={key}={value}" for key, value in variables.items())
        run("systemd-run", f"--unit={name}", "--collect", *assignments, *daemon)
    else:
        with Path(request["log"]).open("ab") as log:
            subprocess.Popen(
                daemon,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **variables},
                start_new_session=True,
            )
    deadline = time.monotonic() + START_TIMEOUT_SEC
    while not is_engine_up(request["socket"]):
        if time.monotonic() > deadline:
            raise EngineSetupError(
                f"dockerd did not respond at {request['socket']} within {START_TIMEOUT_SEC:.0f} s; see {request['log']}"
            )
        time.sleep(0.1)


def is_engine_up(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as engine:
        engine.settimeout(5.0)
        try:
            engine.connect(path)
            engine.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in engine.recv(64)
        except OSError:
            return False


def run(*argv: str, pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, check=True, capture_output=True, timeout=600, pass_fds=pass_fds)


if __name__ == "__main__":
    sys.exit(main())
