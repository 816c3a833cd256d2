"""Our work directory below --tmpdir on the build VM. It is used only if this user owns it."""

import posixpath

from remote.agent.shared.secure_dir import EXIT_FOREIGN_OWNER
from remote.hosts.base import Host, HostError, parse_json
from remote.hosts.bundle import inline_command

FOLDER_NAME = "qlora-fleet"
_CLAIM_TIMEOUT_SEC = 60.0


class WorkdirUnsafe(HostError):
    """Error raised if another user owns the work directory or may write to it; the message has owner and path."""


class WorkdirError(HostError):
    """Error raised if the work directory cannot be created."""


def workdir_path(tmpdir: str) -> str:
    return posixpath.join(tmpdir, FOLDER_NAME)


def claim(host: Host, tmpdir: str, *, create: bool = True) -> int:
    """Check that this user owns the work directory below `tmpdir`, and `create` it if missing. Returns the user's uid.

    Without `create` a missing folder is not an error. Raises WorkdirUnsafe, WorkdirError and like `Host.run`.
    """
    folder = workdir_path(tmpdir)
    command = inline_command(host, "remote.agent.shared.secure_dir", folder, "make" if create else "look")
    completed = host.run(command, timeout_sec=_CLAIM_TIMEOUT_SEC)
    if completed.exit_code != 0:
        complaint = command.tail(completed.stderr.decode(errors="replace"), lines=1)
        kind = WorkdirUnsafe if completed.exit_code == EXIT_FOREIGN_OWNER else WorkdirError
        raise kind(f"{host.name}: {complaint or f'{folder}: exit {completed.exit_code}'}")
    return parse_json(host, completed.stdout, "the owner of its folder", lambda document: int(document["owner"]))
