"""Submission of a training: as a Kubernetes Job over pods, as a detached job on one host. Both need no operator.

Over pods the Job replaces the workers, and runs one rank in each pod. Its overlay is `cluster.overlay` if that runs a
training, as with JobSet or Kueue, and otherwise follows from the number of pods.
"""

import json
from collections.abc import Callable
from typing import Any

from bench.records import schema
from bench.records.paths import NODE_PORT, NODE_TOKEN
from bench.records.run import RunRecord, TrainingJobSpec
from remote.cluster.manifests import JOB_PREFIX
from remote.fleet.gang_agent import rank_environment
from remote.jobs.job import HostBusy, JobSpec
from tasks.cli.command_result import CommandResult
from tasks.clients.worker_queries import translate_host_errors
from tasks.clients.workers import bench_program
from tasks.cluster import deploy
from tasks.cluster.commands import DeployOptions
from tasks.errors import RetryableError, UsageError
from tasks.fleet.training_job import HostJob
from tasks.settings.layers import Settings

MAX_SPEC_BYTES = 120_000  # Linux limits one environment variable to 128 KiB
NO_VOLUME = (
    "! without a shared volume (cluster.volume.handle) checkpoints and adapter are lost with the pod, and a training "
    "whose pod is replaced begins again; it keeps its GPU until `inv train` or `inv collect` has fetched the adapter"
)


def job_facts(settings: Settings, host_runs: str, ranks: int) -> dict[str, Any]:
    """Return where the training's job runs, for the run's record. `host_runs`: the folder of runs on a single host.

    Raises UsageError for several pods without a shared volume.
    """
    first = {"turn": 1, "after": 0}
    if not settings.connector.is_cluster:
        return {"shared": host_runs, **first}
    has_volume = settings.cluster.volume.handle is not None
    if ranks > 1 and not has_volume:
        raise UsageError(
            "cluster.volume.handle is null: without a shared volume, a replaced pod has no checkpoints",
            remedy="set it, or train on one pod with --workers=1",
        )
    overlay: str = settings.cluster.overlay
    if not overlay.startswith(JOB_PREFIX):  # that of workers
        overlay = f"{JOB_PREFIX}1gpu" if ranks == 1 else f"{JOB_PREFIX}4gpu"
    facts = {"shared": settings.pod_results, "overlay": overlay, **first}
    return facts if has_volume else {**facts, "keeps_pod": True}


def submit(
    settings: Settings, run: RunRecord, options: DeployOptions, on_accepted: Callable[[], RunRecord]
) -> tuple[RunRecord, CommandResult | None]:
    """Submit a run's training; return the run, and over pods the plan of a dry run.

    `on_accepted` writes the plan after all checks, and returns the run with its final id. The caller holds the lock of
    the results. Raises the errors of `inv deploy`, and RetryableError if the host is busy.
    """
    job = run.provenance["inputs"]["job"]
    spec = _to_text(_job_spec(settings, run))  # before the plan is written: it may be refused
    if "overlay" not in job:
        run = on_accepted()
        _start(settings, run, _job_spec(settings, run))
        _print_submitted(run)
        return run, None
    values: dict[str, str | int] = {
        "job_spec": spec,
        "run_id": run.run_id,
        "size": run.planned[0].trial.world_size,
    }
    training = deploy.TrainingDeployment(overlay=job["overlay"], values=values, on_accepted=on_accepted)
    deployed = deploy.apply(settings, options, training)
    if not options.dry_run:
        _print_submitted(run)
    return run, deployed


def _print_submitted(run: RunRecord) -> None:
    print(f"run {run.run_id}: submitted, it needs no operator: Ctrl-C leaves it running", flush=True)


def _job_spec(settings: Settings, run: RunRecord) -> TrainingJobSpec:
    job, (planned,) = run.provenance["inputs"]["job"], run.planned
    is_over_pods, ranks = "overlay" in job, planned.trial.world_size
    rendezvous = rank_environment(run.run_id, "", 0) if is_over_pods and ranks > 1 else {}
    return TrainingJobSpec(
        run_id=run.run_id,
        planned=planned,
        shared=job["shared"],
        turn=job["turn"],
        after=job["after"],
        max_restarts=settings.train.max_restarts,
        port=int(rendezvous[NODE_PORT]) if rendezvous else None,
        token=rendezvous.get(NODE_TOKEN, ""),
        keeps_pod=job.get("keeps_pod", False),
    )


def _to_text(spec: TrainingJobSpec) -> str:
    """Return the spec as JSON. Raises UsageError if it is too large for the environment of a process."""
    text = json.dumps(schema.to_json(spec), ensure_ascii=False)
    if (size := len(text.encode())) > MAX_SPEC_BYTES:
        raise UsageError(
            f"train: {size:,} bytes of settings, more than {MAX_SPEC_BYTES:,}: data files, system, chat_template",
            remedy="name the files by a pattern such as FOLDER/*.jsonl, or shorten the texts",
        )
    return text


def _start(settings: Settings, run: RunRecord, spec: TrainingJobSpec) -> None:
    """Start the training on its host, which has all ranks."""
    host_job, trial = HostJob(settings, run), spec.planned.trial
    command = bench_program(settings).training_command(host_job.hosts[0], _to_text(spec))
    with translate_host_errors():
        try:
            host_job.job.start(JobSpec(command=command, deadline_sec=trial.deadline_sec * (1 + spec.max_restarts)))
        except HostBusy as error:
            raise RetryableError.from_error(error, remedy="rerun the command when that has ended") from error
