"""Trainings that run as a Kubernetes Job without an operator (`inv train --job`).

Their state is on the shared volume: each attempt of the pods has its own folder there, and the first pod writes the
training's end. It is read through a pod of the training, a worker, or, as the pods of a training that has ended run no
commands and `inv train --job` has replaced the workers, a temporary pod without a GPU, with the image and the volumes
of the Job's pods. After a cancelled training no Job is left; its manifests are then rendered again.

The ledger gets the modification times of the attempts' files, so that the recorded duration does not depend on when
they are imported. Deleting the Job leaves its pods time to write a checkpoint.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.atomic_files import write_atomic
from bench.records.paths import (
    CHECKPOINTS_FOLDER,
    JOB_END_FILE,
    PROGRESS_FILE,
    RESTARTS_FILE,
    RESULT_FILE,
    TRIALS_FOLDER,
)
from bench.records.run import RunRecord, TrainingJobEnd
from bench.records.status import Outcome, ReasonCode, TrialStatus
from bench.records.training import Restart
from remote.cluster.client import KINDS, Cluster
from remote.cluster.diagnosis.finding import Diagnosis
from remote.cluster.diagnosis.pods import training_end
from remote.cluster.diagnosis.readiness import build_fleet
from remote.cluster.labels import RUN_ANNOTATION, TRAIN, Object
from remote.cluster.manifests import READER, make_reader_job, render
from remote.cluster.plan import has_ended, identity, is_training
from remote.fleet.ledger import Ledger
from remote.fleet.outcome import fetch_result
from remote.fleet.worker import DOWNLOAD_FOLDER
from remote.hosts.base import Host, HostError, collapse_whitespace, read_json
from remote.hosts.bundle import inline_command
from remote.hosts.command import Command
from remote.hosts.pods.host import PodHost
from remote.jobs.job import Agent, Job, JobState, JobStatus
from remote.jobs.transfer import pull
from reports.read.attempts import AttemptSpan
from tasks.clients.cluster import (
    MANIFESTS,
    manifest_values,
    open_cluster,
    resolve_provider,
    resolve_target,
    translate_cluster_errors,
)
from tasks.clients.registry import resolve_image
from tasks.clients.worker_queries import translate_host_errors
from tasks.clients.workers import component_hosts, pod_hosts
from tasks.errors import RetryableError, UsageError
from tasks.settings.load import Settings

_READER_NEEDS = ("ConfigMap", "NetworkPolicy", "PersistentVolume", "PersistentVolumeClaim", "ServiceAccount")
_PROBE_TIMEOUT_SEC, _LIST_TIMEOUT_SEC, _DELETE_TIMEOUT_SEC = 30.0, 60.0, 180.0
_POLL_SEC = 1.0


def is_k8s_training(run: RunRecord) -> bool:
    """Check whether this training runs as a Kubernetes Job."""
    return "job" in run.provenance.get("inputs", {})


def training_pods(settings: Settings, run: RunRecord) -> list[PodHost]:
    """Return the training's pods as hosts with the names of the run's workers."""
    return component_hosts(settings, TRAIN, size=len(run.workers))


@contextlib.contextmanager
def open_reader_pod(settings: Settings, run: RunRecord) -> Iterator[Host]:
    """Yield a host that sees the volume. Raises RetryableError, and the errors of `open_cluster`."""
    for host in (*training_pods(settings, run), *pod_hosts(settings, resolve_target(settings))):
        if _probe_error(host) is None:
            yield host
            return
    with open_cluster(settings, changes=True) as cluster, _temporary_reader_pod(settings, cluster, run) as reader:
        yield reader


@contextlib.contextmanager
def _temporary_reader_pod(settings: Settings, cluster: Cluster, run: RunRecord) -> Iterator[Host]:
    jobs = [job for kind in ("Job", "JobSet") for job in cluster.list_fleet_objects(kind)]
    reader_objects = _reader_objects(jobs) or _rendered_reader_objects(settings, cluster, run)
    if not reader_objects:
        raise UsageError(
            f"run {run.run_id}: no pod can read the volume, as cluster.volume.handle is null",
            remedy="set it as it was for the training, then rerun the command",
        )
    print(f"creating pod {READER} to read the volume", flush=True)
    cluster.apply(reader_objects)
    try:
        (host,) = component_hosts(settings, READER)
        deadline = time.monotonic() + settings.cluster.ready_timeout_sec
        while (error := _probe_error(host)) is not None:
            if time.monotonic() > deadline:
                problem = next(iter(_reader_findings(cluster)), None) or error
                raise RetryableError(f"{problem} (for {settings.cluster.ready_timeout_sec:g} s)")
            time.sleep(_POLL_SEC)
            if not cluster.has_object(KINDS["Job"], READER):  # another command has used it, and deleted it
                cluster.apply(reader_objects)
        yield host
    finally:
        cluster.delete(reader_objects, wait_sec=_DELETE_TIMEOUT_SEC)


def _reader_findings(cluster: Cluster) -> Sequence[Diagnosis]:
    """Return why the reader's pod does not run, as far as the cluster says so. Raises ClusterError."""
    jobs = [job for job in cluster.list_fleet_objects("Job") if job["metadata"]["name"] == READER]
    claims = cluster.list_fleet_objects("PersistentVolumeClaim")
    return build_fleet(jobs, cluster.pods(), claims, cluster.events(), cluster.provider).all_findings


def _reader_objects(jobs: Sequence[Object]) -> Sequence[Object]:
    """Return a reader with the volumes of the first Job that mounts a claim; empty if none does."""
    return [reader for job in jobs if (reader := make_reader_job(job)) is not None][:1]


def _rendered_reader_objects(settings: Settings, cluster_client: Cluster, run: RunRecord) -> Sequence[Object]:
    """Return a reader made from the run's Job as rendered with the current settings, and the objects that it lacks.

    After `inv teardown` it lacks all of them. Raises UsageError without an image.
    """
    overlay = run.provenance["inputs"]["job"]["overlay"]
    settings = resolve_provider(settings.with_values(cluster={"overlay": overlay}), cluster_client)
    values = manifest_values(settings, resolve_image(settings))
    job: dict[str, str | int | list[str]] = {"job_spec": "{}", "run_id": run.run_id, "size": len(run.workers)}
    values = dataclasses.replace(values, extra_settings={**values.extra_settings, **job})
    with translate_cluster_errors():
        desired = render(values, settings.root / MANIFESTS)
    reader = _reader_objects([resource for resource in desired if resource["kind"] in ("Job", "JobSet")])
    existing = {identity(resource) for resource in cluster_client.live_objects()}
    absent = [item for item in desired if item["kind"] in _READER_NEEDS and identity(item) not in existing]
    if all(item["kind"] != "PersistentVolumeClaim" for item in absent):  # its volume may be hidden from this account
        absent = [item for item in absent if item["kind"] != "PersistentVolume"]
    return [*absent, *reader] if reader else []


def _probe_error(host: Host) -> str | None:
    """Return why this host cannot run commands; None if it can."""
    try:
        host.run(Command(argv=(*host.python, "-c", "")), timeout_sec=_PROBE_TIMEOUT_SEC)
    except HostError as error:
        return collapse_whitespace(error)
    return None


@dataclass(frozen=True, kw_only=True)
class VolumeState:
    """The state on the volume: attempts as (number, first file's time, last file's time), and the last one's progress.

    `progress` is unvalidated JSON. `restarts` is empty if the file of the restarts is missing or invalid.
    """

    attempts: list[tuple[int, float, float]]
    progress: dict[str, Any] | None
    restarts: Sequence[Restart] = ()

    def attempt_spans(self, run: RunRecord) -> list[AttemptSpan]:
        """Convert the attempts to spans; the last attempt counts as running."""
        worker, size = run.workers[0], run.planned[0].trial.world_size
        spans = [
            AttemptSpan(number=number, worker=worker, began=first, ended=last, workers=size)
            for number, first, last in self.attempts
        ]
        return [*spans[:-1], *(replace(span, ended=None) for span in spans[-1:])]


def run_folder_on_volume(run: RunRecord) -> str:
    """Return the run's folder on the volume, as written in the job spec."""
    return f"{run.provenance['inputs']['job']['shared']}/{run.run_id}"


def read_volume_state(run: RunRecord, host: Host) -> VolumeState:
    """Read the training's attempts and progress from the volume. Raises HostError."""
    trial_id, script = run.planned[0].trial_id, "remote.agent.scripts.list_attempts"
    restarts_file = f"{CHECKPOINTS_FOLDER}/{RESTARTS_FILE}"
    command = inline_command(host, script, run_folder_on_volume(run), trial_id, PROGRESS_FILE, restarts_file)
    return read_json(host, command, "the list of the training's attempts", _to_state, timeout_sec=_LIST_TIMEOUT_SEC)


def _to_state(document: Any) -> VolumeState:
    attempts = [(int(number), float(first), float(last)) for number, first, last in document["attempts"]]
    progress, restarts = document["progress"], list[Restart]()
    with contextlib.suppress(ValueError, TypeError):  # also null: no attempt has resumed
        restarts = [schema.from_json(Restart, restart) for restart in document["restarts"]]
    return VolumeState(attempts=attempts, progress=progress if isinstance(progress, dict) else None, restarts=restarts)


def sync_ledger(run: RunRecord, folder: Path, ledger: Ledger, host: Host) -> None:
    """Import attempts and end into the ledger; `folder` is the run's. Raises HostError, LedgerError and OSError."""
    (planned,), state = run.planned, read_volume_state(run, host)
    entry = ledger.entries[planned.trial_id]
    if entry.status is not None:
        return
    run_folder, size = run_folder_on_volume(run), planned.trial.world_size
    for number, first, _ in state.attempts:
        if entry.find_attempt(number) is None:
            ledger.record_start(
                planned.trial_id, number, run.workers[0], f"{run_folder}/{planned.trial_id}.{number}", size, at=first
            )
    end_times = {number: last for number, _, last in state.attempts}
    for attempt in entry.attempts[:-1]:
        if attempt.reason is None:
            ended_at = end_times.get(attempt.number)
            outcome = Outcome.of(ReasonCode.WORKER_LOST, "ended from outside; its Job started another attempt")
            ledger.record_retry(planned.trial_id, attempt.number, outcome, at=ended_at)
    _record_restarts(run, ledger, state.restarts)
    incoming, turn = folder / DOWNLOAD_FOLDER, run.provenance["inputs"]["job"]["turn"]
    incoming.mkdir(exist_ok=True)
    pull(Agent(host), run_folder, incoming, only=(JOB_END_FILE.format(turn=turn),))
    order_end = TrainingJobEnd.read_or_none(incoming, turn)
    last_attempt = None if order_end is None else entry.find_attempt(order_end.attempt)
    if order_end is None or last_attempt is None:
        return
    job_status = JobStatus(
        state=JobState.ENDED, exit_code=0 if order_end.end is TrialStatus.SUCCEEDED else 1, why="exited"
    )
    job = Job(Agent(host), last_attempt.folder)
    outcome, result = fetch_result(
        job, planned, last_attempt, job_status, remote_folders=[last_attempt.folder], download_folder=incoming
    )
    target = folder / TRIALS_FOLDER / planned.trial_id
    if result is not None:
        target.mkdir(parents=True, exist_ok=True)
        write_atomic(target / RESULT_FILE, result.read_bytes())
    if order_end.end is not TrialStatus.SUCCEEDED:  # the pods know more than the last result: restarts, faulty nodes
        outcome = order_end.outcome
    elif result is None:
        outcome = Outcome.of(ReasonCode.NO_RESULT, "recorded as SUCCEEDED, but its result is not on the volume")
    ledger.record_end(planned.trial_id, outcome, last_attempt.number, at=end_times.get(last_attempt.number))


def _record_restarts(run: RunRecord, ledger: Ledger, restarts: Sequence[Restart]) -> None:
    """Record the cost of each attempt that resumed and made a step, once; the clock is that of the volume's files.

    The first attempt of a Job that was submitted again has no cost: its checkpoint waited for the operator.
    """
    trial_id, workers = run.planned[0].trial_id, run.planned[0].trial.world_size
    entry, first = ledger.entries[trial_id], run.provenance["inputs"]["job"]["after"] + 1
    price = (run.provenance["inputs"].get("forecast") or {}).get("usd_per_gpu_hour")
    for restart in restarts:
        lost_sec = restart.since_checkpoint_sec
        if lost_sec is None or entry.find_attempt(restart.attempt) is None:
            continue
        if restart.attempt > first and not ledger.has_restarted(trial_id, restart.attempt):
            usd = None if price is None else round(lost_sec * workers * price / 3600.0, 4)
            cost = {"step": restart.from_step, "lost_sec": lost_sec, "workers": workers, "usd": usd}
            ledger.record_restart(trial_id, restart.attempt, **cost)


def find_job(cluster: Cluster, run_id: str) -> Object | None:
    """Return the Job or JobSet of this run; None if it does not exist."""
    for kind in ("JobSet", "Job"):
        for job in cluster.list_fleet_objects(kind):
            if (job["metadata"].get("annotations") or {}).get(RUN_ANNOTATION) == run_id:
                return job
    return None


def is_job_active(settings: Settings, run: RunRecord) -> bool:
    """Check whether the run's Job exists and has not ended."""
    with open_cluster(settings) as cluster:
        job = find_job(cluster, run.run_id)
    return job is not None and is_training(job)


def describe_end(settings: Settings, run: RunRecord) -> str | None:
    """Return one line on the end of a training whose pods have ended; None while it goes on.

    Its pods repeat the end that is on the volume; the status of the Job does not tell a failure from a success.
    """
    with open_cluster(settings) as cluster:
        job = find_job(cluster, run.run_id)
        own = [
            pod
            for pod in cluster.pods()
            if (pod["metadata"].get("annotations") or {}).get(RUN_ANNOTATION) == run.run_id
        ]
    end = next(filter(None, map(training_end, own)), None)
    if end is None and job is not None and is_training(job):
        return None
    return f"run {run.run_id}: {end or 'its pods are gone'}; `inv collect --run={run.run_id}` fetches its results"


def cancel_training(settings: Settings, run: RunRecord, folder: Path, ledger: Ledger) -> None:
    """Delete the Job, and end the training as CANCELLED unless it has already ended. Raises LedgerError."""
    trial_id = run.planned[0].trial_id
    with open_cluster(settings, changes=True) as cluster:
        job = find_job(cluster, run.run_id)
        if job is None or has_ended(job):  # no pod of it runs commands, and it may have succeeded
            with translate_host_errors(), _temporary_reader_pod(settings, cluster, run) as reader:
                sync_ledger(run, folder, ledger, reader)
        for host in training_pods(settings, run) if ledger.is_open(trial_id) else ():
            with contextlib.suppress(HostError):  # this pod has not started, or has ended before the others
                sync_ledger(run, folder, ledger, host)
                break
        if job is not None and ledger.is_open(trial_id):
            print(f"deleting {job['kind'].lower()}/{job['metadata']['name']} and waiting for its pods", flush=True)
            cluster.delete([job], wait_sec=_DELETE_TIMEOUT_SEC)
    attempts = ledger.entries[trial_id].attempts
    outcome = Outcome.of(ReasonCode.CANCELLED, "cancelled by the operator")
    if ledger.record_end(trial_id, outcome, attempts[-1].number if attempts else None):
        print(f"run {run.run_id}: cancelled; `inv train --job --resume={run.run_id}` resumes it")
    else:
        print(f"run {run.run_id}: it had already ended; `inv collect --run={run.run_id}` fetches its results")
