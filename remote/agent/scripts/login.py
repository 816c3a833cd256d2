"""Program that creates a configuration folder for one login of the engine's client and prints its path.

    python -c THIS PREFIX MAX_AGE_SEC     first removes this user's folders with that prefix that no login uses any more

A folder older than MAX_AGE_SEC is of a killed login; a younger one may be in use. The folder is in memory if possible.
Its empty entry keeps the client from storing the password in a keyring.
"""

import json
import os
import shutil
import stat
import sys
import tempfile
import time
from pathlib import Path


def is_abandoned(path: Path, max_age_sec: float) -> bool:
    """Return True for an old folder of this user that is not a link: any user may create such a name."""
    try:
        status = path.lstat()
    except OSError:  # deleted meanwhile
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own and time.time() - status.st_mtime > max_age_sec


def parent_folders() -> list[str]:
    """List the folders that a login may be in, those in memory first."""
    named = ("/dev/shm", *map(os.environ.get, ("XDG_RUNTIME_DIR", "TMPDIR")), "/tmp", "/var/tmp")  # noqa: S108 - mkdtemp makes the name unique
    return [path for path in named if path]


def create_login(parent: str, prefix: str, max_age_sec: float) -> str:
    for path in Path(parent).iterdir():
        if path.name.startswith(prefix) and is_abandoned(path, max_age_sec):
            shutil.rmtree(path, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
    try:
        Path(folder, "config.json").write_text(json.dumps({"auths": {"qlora-fleet.invalid": {}}}), encoding="utf-8")
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def main() -> int:
    failures = []
    for parent in parent_folders():
        try:
            folder = create_login(parent, sys.argv[1], float(sys.argv[2]))
        except OSError as error:  # full, read-only, missing, or not ours to write to
            failures.append(f"{parent}: {error.strerror}")
            continue
        sys.stdout.write(folder + "\n")
        return 0
    sys.stderr.write(f"no folder for the login: {', '.join(failures)}; free space in one of them\n")
    return 3


if __name__ == "__main__":
    sys.exit(main())
