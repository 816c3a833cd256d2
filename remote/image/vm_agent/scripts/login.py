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


def main() -> None:
    prefix = sys.argv[1]
    in_memory = ("/dev/shm", os.environ.get("XDG_RUNTIME_DIR"))  # noqa: S108 - mkdtemp makes the name unique
    parent = next((path for path in in_memory if path and os.access(path, os.W_OK)), tempfile.gettempdir())
    for path in Path(parent).iterdir():
        if path.name.startswith(prefix) and is_own_folder(path):
            shutil.rmtree(path, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
    Path(folder, "config.json").write_text(json.dumps({"auths": {"qlora-fleet.invalid": {}}}), encoding="utf-8")
    sys.stdout.write(folder + "\n")


if __name__ == "__main__":
    main()
