"""On the build VM: a folder that is ours alone, also where everybody may make folders (`/mnt/fss`, `/tmp`: mode 1777).

    python -c THIS FOLDER make|look     one JSON line {"owner": ...}, or the reason on standard error and exit code 4

What another user made there first is refused and never used: it may be a link to something precious, or hold files that
we would trust. It imports no other module of ours, so that it can be sent as the text of one command.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import stat
import sys
from pathlib import Path

NOT_OURS = 4  # exit code: refused for safety


class ForeignOwner(Exception):
    """A path that another user made or may change; the message names it and its owner."""


def own_folder(path: str | Path, *, make: bool = True) -> None:
    """See that the folder is this user's, no link and closed to all others; `make` it where there is none.

    Its parent, and the way there, is the operator's choice. Raises NotOurs, and OSError where it cannot be made.
    """
    folder = Path(path)
    if make:
        folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        if make:
            raise
        return  # nothing is there that could be somebody's
    try:
        _check_parent(parent, folder.parent)
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder.name, 0o700, dir_fd=parent)
        handle = _opened(parent, folder)
        if handle is None:
            return
        try:
            _check(handle, folder)
        finally:
            os.close(handle)
    finally:
        os.close(parent)


def _opened(parent: int, folder: Path) -> int | None:
    """The folder itself, never what a link of its name points to; None where there is none."""
    try:
        return os.open(folder.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        seen = os.stat(folder.name, dir_fd=parent, follow_symlinks=False)
        if error.errno == errno.EACCES:  # a folder that is closed to us
            raise _not_ours(folder, seen.st_uid) from None
        what = "a link" if stat.S_ISLNK(seen.st_mode) else "no folder"
        raise ForeignOwner(
            f"{folder}: is {what}, made by {name_of(seen.st_uid)}; look at it, remove it, then the same again"
        ) from None


def _check(handle: int, folder: Path) -> None:
    seen = os.fstat(handle)
    if seen.st_uid != os.geteuid():
        raise _not_ours(folder, seen.st_uid)
    mode = stat.S_IMODE(seen.st_mode)
    if mode & 0o022:
        raise ForeignOwner(
            f"{folder}: others may write there (mode {mode:04o}), so nothing in it can be trusted; look what is in it, "
            f"then type on the VM: chmod 700 {folder}"
        )
    if mode & 0o077:
        os.fchmod(handle, 0o700)


def _check_parent(handle: int, parent: Path) -> None:
    """In a folder where everybody may write and rename, nothing stays ours."""
    seen = os.fstat(handle)
    if seen.st_mode & stat.S_IWOTH and not seen.st_mode & stat.S_ISVTX:
        raise ForeignOwner(
            f"{parent}: of {name_of(seen.st_uid)}: everybody may replace what others keep there (mode "
            f"{stat.S_IMODE(seen.st_mode):04o}); type on the VM: sudo chmod +t {parent}"
        )


def _not_ours(folder: Path, owner: int) -> ForeignOwner:
    me = name_of(os.geteuid())
    return ForeignOwner(
        f"{folder}: belongs to {name_of(owner)}, not to {me}; name another place with --tmpdir, for example after "
        f"`mkdir -m 700 {folder.parent}/{me}` there"
    )


def name_of(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} (uid {user})" if user != os.geteuid() else pwd.getpwuid(user).pw_name
    except KeyError:
        return f"uid {user}"


def main() -> int:
    try:
        own_folder(sys.argv[1], make=sys.argv[2] == "make")
    except ForeignOwner as error:
        sys.stderr.write(f"{error}\n")
        return NOT_OURS
    except OSError as error:
        sys.stderr.write(f"{error.filename or sys.argv[1]}: {error.strerror}\n")
        return 3
    sys.stdout.write(json.dumps({"owner": os.geteuid()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
