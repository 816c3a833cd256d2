"""Results that outlive their worker: an attempt's output on a volume that all workers of a fleet share.

The job's folder stays on the worker's own disk, because locks and heartbeats on a network file system can outlive
their owner; its output folder is a link to the shared volume. So a trial that was done when its worker died is not run
again, and `inv collect` reads its files through another worker.

Not covered: the job's log, which is on the worker's own disk; its last lines are in the result.
"""

from dataclasses import replace

from bench.records import NODE_RANK
from bench.records.paths import RESULT_FILE
from remote.fleet.fetch_result import OUT_FOLDER
from remote.hosts.bundle import PYTHON_FLAGS
from remote.hosts.command import Command
from remote.hosts.host import Host

# A gang's leader alone writes output.
_LINK = f"""
import os, sys
place, link, done, *argv = sys.argv[1:]
try:
    if os.environ.get("{NODE_RANK}", "0") != "0":
        os.execvp(argv[0], argv)
    os.symlink(place, link)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    try:
        os.mkdir(place)
    except FileExistsError:
        if os.path.exists(os.path.join(place, done)):
            sys.exit(0)
        sys.stderr.write(place + ": this attempt was begun by another worker that is gone\\n")
        sys.exit(127)
    os.execvp(argv[0], argv)
except OSError as error:
    sys.stderr.write(str(error.filename) + ": " + str(error.strerror) + "\\n")
    sys.exit(127)
"""


def place_of(shared: str, run_id: str, trial_id: str, attempt: int) -> str:
    """The folder of one attempt's output on the shared volume; attempts never share one."""
    return f"{shared}/{run_id}/{trial_id}.{attempt}"


def on_shared_volume(command: Command, host: Host, place: str, folder: str) -> Command:
    """`command`, run with the output folder of its job's `folder` on `host` pointing at `place`, which it must be the
    first to create.

    A pod can die, and its replacement may be told to start the same attempt again. If the result lies in `place` by
    then, there is nothing left to do; if not, the first copy may still be running, and the attempt ends with 127,
    as it does without the volume: the worker's fault, not the trial's.
    """
    words = (place, f"{folder}/{OUT_FOLDER}", RESULT_FILE)
    return replace(command, argv=(*host.python, *PYTHON_FLAGS, "-c", _LINK, *words, *command.argv))
