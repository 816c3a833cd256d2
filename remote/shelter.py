"""Results that outlive their worker: an attempt's output on a volume that all workers of a fleet share.

The job's folder stays on the worker's own disk, because locks and heartbeats on a network file system can outlive
whoever held them; its output folder is a link to the shared volume. So a trial that was done when its worker died is
not run again, and `inv collect` reads its files through another worker.

Not covered: the job's log, which is on the worker's own disk; its last lines are in the result.
"""

from __future__ import annotations

from dataclasses import replace

from remote.command import Command

_LINK = """
import os, sys
place, link, *argv = sys.argv[1:]
try:
    os.makedirs(place, exist_ok=True)
    if not os.path.lexists(link):
        os.symlink(place, link)
    os.execvp(argv[0], argv)
except OSError as error:
    sys.stderr.write(f"{error.filename}: {error.strerror}\\n")
    sys.exit(127)
"""


def place_of(shared: str, run_id: str, trial_id: str, attempt: int) -> str:
    """The folder of one attempt's output on the shared volume; attempts never share one."""
    return f"{shared}/{run_id}/{trial_id}.{attempt}"


def sheltered(command: Command, python: tuple[str, ...], place: str, link: str) -> Command:
    """`command`, run with `link` pointing at `place`. A volume that is not there ends it with 127: another worker may
    have it."""
    return replace(command, argv=(*python, "-c", _LINK, place, link, *command.argv))
