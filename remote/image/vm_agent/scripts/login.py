"""Makes a configuration folder for one login of the engine's client and prints its path.

    python -c THIS PREFIX     first removes this user's folders of that prefix, which killed logins have left

The folder is in memory where the VM has such a place. Its empty entry keeps the client from handing the password to a
keyring.
"""

import json
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path


def is_ours(path: Path) -> bool:
    """A folder of this user's and no link: everybody may put anything under such a name."""
    try:
        seen = path.lstat()
    except OSError:  # gone meanwhile
        return False
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid()


def main() -> None:
    prefix = sys.argv[1]
    in_memory = ("/dev/shm", os.environ.get("XDG_RUNTIME_DIR"))  # noqa: S108 - made with a name of its own below
    parent = next((place for place in in_memory if place and os.access(place, os.W_OK)), tempfile.gettempdir())
    for path in Path(parent).iterdir():
        if path.name.startswith(prefix) and is_ours(path):
            shutil.rmtree(path, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
    Path(folder, "config.json").write_text(json.dumps({"auths": {"qlora-fleet.invalid": {}}}), encoding="utf-8")
    sys.stdout.write(folder + "\n")


if __name__ == "__main__":
    main()
