"""Program that creates a configuration folder for one login of the engine's client and prints its path.

    python -c THIS PREFIX     first removes this user's folders with that prefix, which killed logins left behind

The folder is in memory if possible. Its empty entry keeps the client from storing the password in a keyring.
"""

import json
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path


def is_own_folder(path: Path) -> bool:
    """Return True for a folder of this user that is not a link: any user may create such a name."""
    try:
        status = path.lstat()
    except OSError:  # deleted meanwhile
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def parent_folders() -> list[str]:
    """List the folders that a login may be in, those in memory first."""
    named = ("/dev/shm", *map(os.environ.get, ("XDG_RUNTIME_DIR", "TMPDIR")), "/tmp", "/var/tmp")  # noqa: S108 - mkdtemp makes the name unique
    return [path for path in named if path]


def create_login(parent: str, prefix: str) -> str:
    for path in Path(parent).iterdir():
        if path.name.startswith(prefix) and is_own_folder(path):
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
            folder = create_login(parent, sys.argv[1])
        except OSError as error:  # full, read-only, missing, or not ours to write to
            failures.append(f"{parent}: {error.strerror}")
            continue
        sys.stdout.write(folder + "\n")
        return 0
    sys.stderr.write(f"no folder for the login: {', '.join(failures)}; free space in one of them\n")
    return 3


if __name__ == "__main__":
    sys.exit(main())
