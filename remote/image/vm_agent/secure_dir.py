"""Folder on the build VM that only this user can change, also in a shared one (`/mnt/fss`, `/tmp`: mode 1777).

    python -c THIS FOLDER make|look     one JSON line {"owner": ...}, or the cause on standard error and exit code 4

A path that another user created is never used: it may be a link to valuable files, or contain files that we would
trust. The module imports no other module of ours, so that it can be sent as the text of one command.
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

EXIT_FOREIGN_OWNER = 4  # exit code: refused for safety


class ForeignOwner(Exception):
    """Error raised for a path that another user created or may change; the message has path and owner."""


def ensure_own_folder(path: str | Path, *, create: bool = True) -> None:
    """Check that the folder is this user's, is not a link, and is closed to all others; `create` it if missing.

    Its parents are not checked further: they are the operator's choice. Raises ForeignOwner, and OSError if it cannot
    be created.
    """
    folder = Path(path)
    if create:
        folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        if create:
            raise
        return  # the folder does not exist
    try:
        _check_parent(parent, folder.parent)
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder.name, 0o700, dir_fd=parent)
        handle = _open_folder(parent, folder)
        if handle is None:
            return
        try:
            _check_folder(handle, folder)
        finally:
            os.close(handle)
    finally:
        os.close(parent)


def _open_folder(parent: int, folder: Path) -> int | None:
    """Open the folder without following links; None if it does not exist."""
    try:
        return os.open(folder.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        status = os.stat(folder.name, dir_fd=parent, follow_symlinks=False)
        if error.errno == errno.EACCES:  # a folder that is closed to us
            raise _foreign_owner(folder, status.st_uid) from None
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "not a folder"
        raise ForeignOwner(
            f"{folder}: is {kind}, created by {user_name(status.st_uid)}; check and remove it, then rerun the command"
        ) from None


def _check_folder(handle: int, folder: Path) -> None:
    status = os.fstat(handle)
    if status.st_uid != os.geteuid():
        raise _foreign_owner(folder, status.st_uid)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022:
        raise ForeignOwner(
            f"{folder}: writable for other users (mode {mode:04o}), so its content cannot be trusted; check its "
            f"content, then run on the VM: chmod 700 {folder}"
        )
    if mode & 0o077:
        os.fchmod(handle, 0o700)


def _check_parent(handle: int, parent: Path) -> None:
    """Reject a world-writable folder without the sticky bit: any user could replace our folder in it."""
    status = os.fstat(handle)
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise ForeignOwner(
            f"{parent}: owned by {user_name(status.st_uid)}: any user can replace other users' files in it (mode "
            f"{stat.S_IMODE(status.st_mode):04o}); run on the VM: sudo chmod +t {parent}"
        )


def _foreign_owner(folder: Path, owner: int) -> ForeignOwner:
    me = user_name(os.geteuid())
    return ForeignOwner(
        f"{folder}: belongs to {user_name(owner)}, not to {me}; set --tmpdir to another folder, for example one "
        f"created there with `mkdir -m 700 {folder.parent}/{me}`"
    )


def user_name(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} (uid {user})" if user != os.geteuid() else pwd.getpwuid(user).pw_name
    except KeyError:
        return f"uid {user}"


def main() -> int:
    try:
        ensure_own_folder(sys.argv[1], create=sys.argv[2] == "make")
    except ForeignOwner as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FOREIGN_OWNER
    except OSError as error:
        sys.stderr.write(f"{error.filename or sys.argv[1]}: {error.strerror}\n")
        return 3
    sys.stdout.write(json.dumps({"owner": os.geteuid()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
