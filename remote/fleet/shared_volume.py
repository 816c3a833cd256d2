"""Attempt output on a volume that all workers of a fleet share, so that results outlive their worker.

The job's folder stays on the worker's own disk, because locks and heartbeats on a network file system can outlive
their owner; its output folder is a link to the shared volume. So a trial that was done when its worker died is not run
again, and `inv collect` reads its files through another worker.

Not covered: the job's log, which is on the worker's own disk; its last lines are in the result.
"""

from dataclasses import replace

from bench.records import NODE_RANK
from bench.records.paths import RESULT_FILE
from remote.fleet.fetch_result import OUT_FOLDER
from remote.hosts.base import Host
from remote.hosts.bundle import PYTHON_FLAGS
from remote.hosts.command import Command

# Only a gang's leader writes output.
_LINK_SCRIPT = f"""
import os, sys
target, link, result_file, *argv = sys.argv[1:]
try:
    if os.environ.get("{NODE_RANK}", "0") != "0":
        os.execvp(argv[0], argv)
    os.symlink(target, link)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.mkdir(target)
    except FileExistsError:
        if os.path.exists(os.path.join(target, result_file)):
            sys.exit(0)
        sys.stderr.write(target + ": this attempt was started by another worker that is gone\\n")
        sys.exit(127)
    os.execvp(argv[0], argv)
except OSError as error:
    sys.stderr.write(str(error.filename) + ": " + str(error.strerror) + "\\n")
    sys.exit(127)
"""


def shared_output_folder(shared_folder: str, run_id: str, trial_id: str, attempt: int) -> str:
    """Return the folder of one attempt's output on the shared volume; each attempt has its own."""
    return f"{shared_folder}/{run_id}/{trial_id}.{attempt}"


def with_shared_output(command: Command, host: Host, output_folder: str, job_folder: str) -> Command:
    """Return `command` with the output folder of its job linked to `output_folder`, which it must create itself.

    A pod can die, and its replacement may start the same attempt again. If `output_folder` then has a result, nothing
    is left to do. If not, the first copy may still be running, and the attempt ends with 127, as it does without the
    volume: the worker's fault, not the trial's.
    """
    link_arguments = (output_folder, f"{job_folder}/{OUT_FOLDER}", RESULT_FILE)
    return replace(command, argv=(*host.python, *PYTHON_FLAGS, "-c", _LINK_SCRIPT, *link_arguments, *command.argv))
