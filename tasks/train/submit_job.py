"""`inv train --job`: a training that Kubernetes runs by itself. It is planned here, deployed, and left.

The pods of the overlay find the order in their environment (`bench.commands.job_runner`); everything else, from the
attempts to the adapter, is on the volume that they share. `inv monitor`, `cancel` and `collect` find it by its run.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from bench.records import NODE_PORT, NODE_TOKEN, schema
from bench.records.run import Order, PlannedTrial, RunRecord
from remote.cluster.manifests import JOB
from remote.fleet.gang_agent import place
from tasks.clients.workers import metrics_of
from tasks.cluster import deploy
from tasks.errors import UsageError
from tasks.fleet import runner
from tasks.fleet.run_store import TRAIN
from tasks.settings.load import Settings
from tasks.train.trial_spec import TrainOptions

LONGEST_ORDER = 100_000  # bytes; Linux takes 128 KiB in one variable


def check(settings: Settings) -> None:
    """Raises UsageError where no Job can train."""
    if settings.train.elastic:
        raise UsageError(
            "train: --job: an elastic training needs somebody who decides how many workers go on; the pods of a Job "
            "wait for the missing one. Leave out --elastic (train.elastic), or type the same without --job and stay"
        )
    if settings.fleet.kind != "pods":
        raise UsageError("train: --job: fleet.kind is local, and a Job has pods; set it to pods")
    if settings.cluster.fss.volume_handle is None:
        raise UsageError(
            "train: --job: cluster.fss.volume_handle is null: without a volume that its pods share, nobody brings the "
            "checkpoints to a pod's replacement; set it, or type the same without --job and stay"
        )


def new(settings: Settings, planned: PlannedTrial, names: list[str], seen: Mapping[str, Any]) -> RunRecord:
    """The run of a training that a Job will run. `seen` is what a worker has said of its inputs; where there was none,
    the pods look at the data, and say what is wrong.
    """
    overlay: str = settings.cluster.overlay
    if not overlay.startswith(JOB):  # then one that trains by itself, for this many pods
        overlay = f"{JOB}1gpu" if len(names) == 1 else f"{JOB}4gpu"
    inputs = {
        "model": {"path": planned.trial.model},
        **seen,
        "job": {"overlay": overlay, "shared": settings.shared_results, "turn": 1, "after": 0},
    }
    return runner.record_of(settings, TRAIN, [planned], names, inputs=inputs)


def order(settings: Settings, run: RunRecord, given: TrainOptions, write_down: Callable[[], object]) -> None:
    """Deploy the Job of a run. `write_down` is called once nothing is refused any more. Raises as `inv deploy`."""
    job, (planned,) = run.provenance["inputs"]["job"], run.planned
    meeting = place(run.run_id, "", 0)
    made = Order(
        run_id=run.run_id,
        planned=planned,
        shared=job["shared"],
        turn=job["turn"],
        after=job["after"],
        max_restarts=settings.train.max_restarts,
        port=int(meeting[NODE_PORT]),
        token=meeting[NODE_TOKEN],
    )
    text = json.dumps(schema.to_json(made), ensure_ascii=False)
    if len(text.encode()) > LONGEST_ORDER:
        size = len(text.encode())
        raise UsageError(f"train.prompts: the order of the Job has {size} bytes, more than {LONGEST_ORDER}; give fewer")
    asked = next(iter(metrics_of(settings).values()), None)  # the same of every pod
    metrics = {} if asked is None else {"metrics": asked}
    section = settings.cluster.model_copy(update={"overlay": job["overlay"]})
    deploy.apply(
        settings.model_copy(update={"cluster": section}),
        deploy.DeployOptions(
            dry_run=given.dry_run,
            yes=given.yes,
            discard_results=given.discard_results,
            plain=True,
            replace=True,
            partial=True,
        ),
        deploy.DeployHooks(
            values={"order": text, "run_id": run.run_id, "size": planned.trial.world_size, **metrics},
            components=tuple(metrics),
            begin=write_down,
            waits=False,
        ),
    )


def say(run_id: str, given: TrainOptions) -> None:
    if not given.dry_run:
        print(
            f"run {run_id}: ordered; it goes on without you. `inv monitor --run={run_id}` shows it, "
            f"`inv collect --run={run_id}` brings the adapter once it has ended, `inv cancel --run={run_id}` stops it"
        )
