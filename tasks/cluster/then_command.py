"""Give nodes back by the operator's own command (`train.then_command`): providers without a module of their own."""

import dataclasses
import json
import shlex
from collections.abc import Callable

from bench.notify.events import time_text
from bench.records import schema
from bench.records.nodes import JobPool, NodesRecord, NodesState
from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import has_gpus
from remote.hosts.base import CommandTimedOut, TooMuchOutput
from remote.hosts.process import CannotStart, run_program
from tasks.clients.cluster import target_identity
from tasks.errors import RetryableError, TaskFailed, UsageError, escape_controls
from tasks.fleet.node_use import check_removable, delete_workloads
from tasks.fleet.nodes import RunFolder
from tasks.fleet.pricing import price_of
from tasks.settings.load import Settings

TIMEOUT_SEC = 3600.0


def plan(settings: Settings, cluster: Cluster) -> tuple[NodesRecord, list[str]]:
    """Plan the command; see `NodeProvider`."""
    argv, provider = settings.train.then_command, cluster.provider.name
    if not argv:
        raise UsageError(
            f"train.then_command: not set, and provider {provider} has no node pools that this program resizes",
            remedy="set it to a program that removes the nodes, or train.then and bench.then to keep",
        )
    price = price_of(settings, [])
    gpus = settings.fleet.size * settings.cluster.gpus_per_pod
    record = NodesRecord(
        run_id="",
        state=NodesState.PLANNED,
        provider=provider,
        cluster=target_identity(cluster.target),
        usd_per_hour=None if price is None else price.usd_per_gpu_hour * gpus,
        price=None if price is None else price.description,
    )
    return record, [f"after success: the fleet's pods are deleted, then this runs: {shlex.join(argv)}"]


def plan_job(
    _settings: Settings, _cluster: Cluster, _record: NodesRecord, _pods: int
) -> tuple[JobPool | None, list[str]]:
    """Say that a Job cannot run the command; see `NodeProvider`."""
    return None, ["not by the Job itself: its pods cannot run train.then_command, `inv collect` does"]


def shrink(
    settings: Settings, cluster: Cluster, record: NodesRecord, folder: RunFolder, check_current: Callable[[], None]
) -> None:
    """Run the command with the record as JSON on its standard input; see `NodeProvider`."""
    argv = tuple(settings.train.then_command)
    if not argv:
        raise UsageError("train.then_command: not set any more", remedy="set it as it was when the run started")
    if record.state is NodesState.PLANNED or any(map(has_gpus, cluster.nodes())):  # else they are gone already
        check_current()
        check_removable(settings, cluster, has_gpus, "of the GPU nodes")
    record = dataclasses.replace(record, state=NodesState.REQUESTED, requested_at=time_text())
    folder.save(record)
    delete_workloads(settings, cluster)
    try:
        completed = run_program(
            argv, label=argv[0], stdin=json.dumps(schema.to_json(record)).encode(), timeout_sec=TIMEOUT_SEC
        )
    except CannotStart as error:
        raise UsageError(f"train.then_command: {error}") from error
    except (CommandTimedOut, TooMuchOutput) as error:
        raise RetryableError(f"train.then_command: {error}") from error
    if completed.exit_code != 0:
        last = completed.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise TaskFailed(escape_controls(": ".join((f"train.then_command: exit code {completed.exit_code}", *last))))
    folder.save(dataclasses.replace(record, state=NodesState.DONE, finished_at=time_text()))
