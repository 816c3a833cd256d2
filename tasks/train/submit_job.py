"""`inv train --job`: plan a training, deploy it as a Kubernetes Job, and leave it running there.

The pods of the overlay read the job spec from their environment (`bench.commands.job_runner`); everything else, from
attempts to the adapter, is on their shared volume. `inv monitor`, `cancel` and `collect` find the Job by its run.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from bench.records import schema
from bench.records.paths import NODE_PORT, NODE_TOKEN
from bench.records.run import PlannedTrial, RunRecord, TrainingJobSpec
from remote.cluster.manifests import JOB_PREFIX
from remote.fleet.gang_agent import rank_environment
from tasks.cli.command_result import CommandResult
from tasks.cluster import deploy
from tasks.cluster.commands import DeployOptions
from tasks.commands import TrainOptions
from tasks.errors import UsageError
from tasks.fleet import runner
from tasks.fleet.run_store import TRAIN
from tasks.settings.load import Settings

MAX_SPEC_BYTES = 100_000  # Linux limits one environment variable to 128 KiB


def check_settings(settings: Settings) -> None:
    """Raise UsageError if the settings do not allow a Kubernetes Job."""
    if not settings.connector.is_cluster:
        raise UsageError("train: --job: fleet.kind is local, but a Job needs pods", remedy="set it to pods")
    if settings.cluster.volume.handle is None:
        raise UsageError(
            "train: --job: cluster.volume.handle is null: without a shared volume, the replacement of a pod has no "
            "checkpoints",
            remedy="set it, or leave out --job",
        )


def new_run(
    settings: Settings, planned_trial: PlannedTrial, names: list[str], probed_inputs: Mapping[str, Any]
) -> RunRecord:
    """Create the run of a training that a Job will run.

    `probed_inputs` is a worker's report on the inputs. It is empty if no worker answered; the pods then check the data.
    """
    overlay: str = settings.cluster.overlay
    if not overlay.startswith(JOB_PREFIX):  # the overlay is for workers: replace it by that of a Job of this size
        overlay = f"{JOB_PREFIX}1gpu" if len(names) == 1 else f"{JOB_PREFIX}4gpu"
    inputs = {
        "model": {"path": planned_trial.trial.model},
        **probed_inputs,
        "job": {"overlay": overlay, "shared": settings.shared_results, "turn": 1, "after": 0},
    }
    return runner.new_record(settings, TRAIN, [planned_trial], names, inputs=inputs)


def submit(
    settings: Settings,
    run: RunRecord,
    options: TrainOptions,
    on_accepted: Callable[[], object],
) -> CommandResult | None:
    """Deploy the Job of a run, or return its plan. `on_accepted` is called after all checks.

    Raises the errors of `inv deploy`.
    """
    job, (planned,) = run.provenance["inputs"]["job"], run.planned
    rendezvous = rank_environment(run.run_id, "", 0)
    spec = TrainingJobSpec(
        run_id=run.run_id,
        planned=planned,
        shared=job["shared"],
        turn=job["turn"],
        after=job["after"],
        max_restarts=settings.train.max_restarts,
        port=int(rendezvous[NODE_PORT]),
        token=rendezvous[NODE_TOKEN],
    )
    spec_json = json.dumps(schema.to_json(spec), ensure_ascii=False)
    if len(spec_json.encode()) > MAX_SPEC_BYTES:
        size = len(spec_json.encode())
        raise UsageError(
            f"train.sample_prompts: the job spec has {size} bytes, more than {MAX_SPEC_BYTES}",
            remedy="use fewer, or a shorter train.chat_template",
        )
    return deploy.apply(
        settings.with_values(cluster={"overlay": job["overlay"]}),
        DeployOptions(
            dry_run=options.dry_run,
            yes=options.yes,
            discard_results=options.discard_results,
            plain=True,
            force=True,
            partial=True,
        ),
        deploy.DeployHooks(
            values={"job_spec": spec_json, "run_id": run.run_id, "size": planned.trial.world_size},
            on_start=lambda _cluster: on_accepted(),
            wait=False,
        ),
    )


def print_submitted(run_id: str, options: TrainOptions) -> None:
    """Print the commands that watch, collect and cancel the Job; nothing in a dry run."""
    if not options.dry_run:
        print(
            f"run {run_id}: submitted, it needs no operator; `inv monitor --run={run_id}` shows it, "
            f"`inv collect --run={run_id}` fetches the adapter at its end, `inv cancel --run={run_id}` stops it"
        )
