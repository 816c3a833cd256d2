"""Our folder below --tmpdir on the build VM: nobody else's, or nothing is done there."""

import json
import posixpath

from remote.hosts.bundle import inline_command
from remote.hosts.host import Host, HostError
from remote.image.vm_agent.secure_dir import NOT_OURS

FOLDER = "qlora-fleet"  # ours below --tmpdir
_CLAIM_SEC = 60.0


class WorkdirUnsafe(HostError):
    """Our folder's name is taken by another user, or others may write there; the message names owner and path."""


class WorkdirError(HostError):
    """Our folder cannot be made; the message says why."""


def home_below(tmpdir: str) -> str:
    return posixpath.join(tmpdir, FOLDER)


def claim(host: Host, tmpdir: str, *, make: bool = True) -> int:
    """See that our folder below `tmpdir` is ours, and `make` it; the user's number there.

    Without `make` a folder that is not there is right. Raises GroundRefused, GroundWrong and as `Host.run`.
    """
    folder = home_below(tmpdir)
    command = inline_command(host, "remote.image.vm_agent.secure_dir", folder, "make" if make else "look")
    completed = host.run(command, timeout_sec=_CLAIM_SEC)
    if completed.exit_code != 0:
        complaint = command.tail(completed.stderr.decode(errors="replace"), lines=1)
        kind = WorkdirUnsafe if completed.exit_code == NOT_OURS else WorkdirError
        raise kind(f"{host.name}: {complaint or f'{folder}: exit {completed.exit_code}'}")
    return int(json.loads(completed.stdout)["owner"])
