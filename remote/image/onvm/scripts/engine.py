"""As root: a second container engine with its data on a share that engines cannot use directly.

    python -c THIS '{"file": ".../engine.ext4", "size_bytes": N, "mount": "...", "socket": "...", "log": "..."}'

Loop-mounts an ext4 file system in one file on the share; a second dockerd keeps its data there. What is there already
stays, so the same call brings everything back after a reboot. Answers in one JSON line, or with the reason on standard
error and exit code 3.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

UP_SEC = 60.0


class Refused(Exception):
    """It cannot be done; the message says why and what to do."""


def main() -> int:
    asked = json.loads(sys.argv[1])
    try:
        if os.geteuid() != 0:
            raise Refused("an engine of its own needs root: let this user run `sudo -n python3`, or log in as root")
        for program in ("dockerd", "mkfs.ext4", "mount"):
            if shutil.which(program) is None:
                raise Refused(f"{program}: not found; apt-get install docker.io e2fsprogs mount")
        made = make_disk(Path(asked["file"]), asked["size_bytes"])
        mount(asked["file"], Path(asked["mount"]))
        started = not answers(asked["socket"])
        if started:
            start(asked)
    except (Refused, OSError, subprocess.CalledProcessError) as error:
        stderr = getattr(error, "stderr", None) or b""
        sys.stderr.write(f"{error} {stderr.decode(errors='replace').strip()}".strip() + "\n")
        return 3
    room = os.statvfs(asked["mount"])
    facts = {"made": made, "started": started, "free_bytes": room.f_bavail * room.f_frsize}
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


def make_disk(file: Path, size_bytes: int) -> bool:
    """Make the file system in its file, once. The file is sparse: it takes from the share only what it holds."""
    if file.exists():
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    room = os.statvfs(file.parent)
    free = room.f_bavail * room.f_frsize
    if free < size_bytes:
        raise Refused(
            f"{file.parent}: {free / 1e9:.1f} GB free, {size_bytes / 1e9:.1f} GB asked for; name a smaller size"
        )
    part = file.with_name(f"{file.name}.part")
    try:
        with part.open("wb") as content:
            content.truncate(size_bytes)
        run("mkfs.ext4", "-q", "-m", "0", str(part))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return True


def mount(file: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not os.path.ismount(folder):
        run("mount", "-o", "loop", file, str(folder))


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
            raise Refused(f"dockerd does not answer at {asked['socket']} after {UP_SEC:.0f} s; see {asked['log']}")
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


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=600)


if __name__ == "__main__":
    sys.exit(main())
