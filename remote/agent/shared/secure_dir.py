"""Folder on the build VM that only this user can change, also in a shared one (`/mnt/fss`, `/tmp`: mode 1777).

    python -c THIS FOLDER make|look     exit code 4 and the cause on standard error if it is not

A path that another user created is never used: it may be a link to valuable files, or contain files that we would
trust. The module imports no other module of ours, so that it can be sent as the text of one command.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import shlex
import stat
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_FOREIGN_OWNER, EXIT_UNUSABLE = 4, 3  # exit codes, as in `bench.records.status`: refused, retryable
MAX_LINKS = 40  # the kernel's limit for one path
ACL_ATTRIBUTE = "system.posix_acl_access"


class ForeignOwner(Exception):
    """Error raised for a path that another user created or may change; the message has path and owner."""


def ensure_own_folder(path: str | Path, *, create: bool = True) -> None:
    """Check that the folder is this user's, is not a link, and is closed to all others; `create` it if missing.

    Every folder above it is checked, too: only root and this user may be able to rename or exchange it. Raises
    ForeignOwner, and OSError if it cannot be created.
    """
    folder = Path(path)
    if create:
        folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        check_trusted(folder.parent)
        parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        if create:
            raise
        return  # the folder does not exist
    try:
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
            raise _foreign_owner(folder, status.st_uid) from error
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "not a folder"
        raise ForeignOwner(
            f"{folder}: is {kind}, created by {user_name(status.st_uid)}; check and remove it, then rerun the command"
        ) from error


def _check_folder(handle: int, folder: Path) -> None:
    status = os.fstat(handle)
    if status.st_uid != os.geteuid():
        raise _foreign_owner(folder, status.st_uid)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022:
        raise ForeignOwner(
            f"{folder}: writable for other users (mode {mode:04o}), so its content cannot be trusted; check its "
            f"content, then run on the VM: chmod 700 {shlex.quote(str(folder))}"
        )
    if mode & 0o077:
        os.fchmod(handle, 0o700)


def check_trusted(path: Path) -> None:
    """Check a path and each folder and link on the way to it: only root and this user may change or exchange them.

    Raises ForeignOwner, and OSError if the path does not exist.
    """
    for entry, status in _walk(path):
        is_link, owner, typed = stat.S_ISLNK(status.st_mode), user_name(status.st_uid), shlex.quote(str(entry))
        if status.st_uid not in (0, os.geteuid()):
            kind, command = ("link", f"rm {typed}") if is_link else ("folder", f"chown root {typed}")
            raise ForeignOwner(
                f"{entry}: a {kind} that belongs to {owner}, who can exchange its content; run on the VM: "
                f"sudo {command}, or choose another path"
            )
        is_world_writable = status.st_mode & stat.S_IWOTH
        is_open = is_world_writable or (status.st_mode & stat.S_IWGRP and not _is_private_group(entry, status.st_gid))
        if is_open and not is_link and not status.st_mode & stat.S_ISVTX:
            others = "any user" if is_world_writable else f"the group {group_name(status.st_gid)}"
            remedy = f"sudo chmod +t {typed}" if status.st_uid == 0 else f"chmod go-w {typed}"
            raise ForeignOwner(
                f"{entry}: owned by {owner}: {others} can exchange its content (mode "
                f"{stat.S_IMODE(status.st_mode):04o}); run on the VM: {remedy}"
            )


def _walk(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each folder and each link that the kernel passes on the way to `path`, and what the path leads to."""
    current, links = Path("/"), 0
    remaining = [*reversed(path.absolute().parts[1:])]
    yield current, current.stat()
    while remaining:
        name = remaining.pop()
        if name == "..":
            current = current.parent
            continue
        entry = current / name
        status = entry.lstat()
        yield entry, status
        if not stat.S_ISLNK(status.st_mode):
            current = entry
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = entry.readlink()
        current = Path("/") if target.is_absolute() else current
        remaining += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _is_private_group(path: Path, gid: int) -> bool:
    """Return True for root's group and a group that only has this user, as sshd in Debian accepts for its files.

    An access list (ACL) also sets the group's bits in the mode, and may name any user.
    """
    with contextlib.suppress(OSError):  # no list, or a file system without them
        os.getxattr(path, ACL_ATTRIBUTE)
        return False
    if gid == 0:
        return True
    try:
        me, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    others = {user.pw_name for user in pwd.getpwall() if user.pw_gid == gid} | set(group.gr_mem)
    return gid == me.pw_gid and group.gr_name == me.pw_name and others <= {me.pw_name}


def _foreign_owner(folder: Path, owner: int) -> ForeignOwner:
    me = user_name(os.geteuid())
    return ForeignOwner(
        f"{folder}: belongs to {user_name(owner)}, not to {me}; set --tmpdir to another folder, for example one "
        f"created there with `mkdir -m 700 {shlex.quote(str(folder.parent / me))}`"
    )


def user_name(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} (uid {user})" if user != os.geteuid() else pwd.getpwuid(user).pw_name
    except KeyError:
        return f"uid {user}"


def group_name(group: int) -> str:
    try:
        return f"{grp.getgrgid(group).gr_name} (gid {group})"
    except KeyError:
        return f"gid {group}"


def main() -> int:
    try:
        ensure_own_folder(sys.argv[1], create=sys.argv[2] == "make")
    except ForeignOwner as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FOREIGN_OWNER
    except OSError as error:
        sys.stderr.write(f"{sys.argv[1]}: {error.strerror}\n")
        return EXIT_UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
