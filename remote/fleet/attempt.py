"""One attempt at a trial, followed over as many connections as it takes, from its start to its job's end."""

from __future__ import annotations

from collections.abc import Callable

from bench.records.layout import PROGRESS_FILE
from bench.records.run import Progress
from bench.records.schema import SchemaError, from_json
from remote.fleet.patience import Reach, Stopped
from remote.jobs.job import Job, JobSpec, JobState, JobStatus

OUT_FOLDER = "out"
TRIAL_FILE = "trial.json"
PROGRESS = f"{OUT_FOLDER}/{PROGRESS_FILE}"


class Overtaken(Exception):
    """The trial being followed has reached its end through another attempt."""


def follow(
    job: Job,
    spec: JobSpec,
    reach: Reach,
    *,
    is_open: Callable[[], bool],
    on_begun: Callable[[], None],
    on_progress: Callable[[Progress], None],
) -> JobStatus:
    """Start the job if need be and watch it to its end.

    `on_begun` is called once the host has taken the job. Raises Overtaken once `is_open()` does not hold any more,
    Stopped, WorkerLost and WorkerBusy.
    """
    name = job.agent.host.name

    def hear(status: JobStatus) -> None:
        reach.heard(name)
        if reach.is_halted:
            raise Stopped
        if not is_open():
            raise Overtaken
        progress = None if status.progress is None else _progress(status.progress)
        if progress is not None:
            on_progress(progress)

    def start() -> JobStatus:
        return job.start(spec)

    def watch() -> JobStatus:
        return job.watch(hear, progress=PROGRESS, every_sec=reach.limits.every_sec)

    status = reach.ask(name, start)
    on_begun()
    while status.state in (JobState.RUNNING, JobState.WAITING):
        status = reach.ask(name, start if status.state is JobState.WAITING else watch)
    return status


def _progress(document: dict[str, object]) -> Progress | None:
    """What a trial says of itself, or None when it is not what we know (another version's): a view, never a verdict."""
    try:
        return from_json(Progress, document)
    except SchemaError:
        return None
