"""Attempt output on a volume that all workers of a fleet share, so that results outlive their worker.

The job's folder stays on the worker's own disk, because locks and heartbeats on a network file system can outlive
their owner; its output folder is a link to the shared volume. So a trial that was done when its worker died is not run
again, and `inv collect` reads its files through another worker.

Not covered: the job's log, which is on the worker's own disk; its last lines are in the result.
"""

from dataclasses import replace

from bench.records.paths import NODE_RANK, RESULT_FILE
from remote.fleet.fetch_result import OUT_FOLDER
from remote.hosts.base import Host
from remote.hosts.bundle import inline_command
from remote.hosts.command import Command


def shared_output_folder(shared_folder: str, run_id: str, trial_id: str, attempt: int) -> str:
    """Return the folder of one attempt's output on the shared volume; each attempt has its own."""
    return f"{shared_folder}/{run_id}/{trial_id}.{attempt}"


def with_shared_output(command: Command, host: Host, output_folder: str, job_folder: str) -> Command:
    """Return `command` with the output folder of its job linked to `output_folder`, which it must create itself.

    A pod can die, and its replacement may start the same attempt again. If `output_folder` then has a result, nothing
    is left to do. If not, the first copy may still be running, and the attempt ends with 127, as it does without the
    volume: the worker's fault, not the trial's.
    """
    arguments = (output_folder, f"{job_folder}/{OUT_FOLDER}", RESULT_FILE, NODE_RANK, *command.argv)
    return replace(command, argv=inline_command(host, "remote.agent.scripts.link_output", *arguments).argv)
