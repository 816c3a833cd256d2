"""Nodes that a run gives back after its success (nodes.json): consent, intent before the request, outcome."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from bench.records.checksummed import Checksummed
from bench.records.paths import NODES_FILE
from bench.records.validation import TrialError


class NodesState(Enum):
    """Progress of giving nodes back."""

    PLANNED = "planned"  # confirmed by the operator when the run started
    REQUESTED = "requested"  # written before the request: it may or may not have been made
    DONE = "done"
    KEPT = "kept"  # by the run's Job, with the reason; `inv collect` decides again


class JobIdentity(str, Enum):
    """Identity as which a Job calls the provider."""

    INSTANCE = "instance_principal"  # the node's instance
    WORKLOAD = "workload_identity"  # the pod's service account


@dataclass(frozen=True, kw_only=True)
class JobPool:
    """Facts with which the first pod of a Job shrinks the pool.

    `region` is the provider's; every node has `gpus_per_node` GPUs, and every pod of the Job holds `gpus_per_pod`.
    `policy` is the statement that allows it, for messages.
    """

    region: str
    identity: JobIdentity
    gpus_per_node: int
    gpus_per_pod: int
    policy: str


@dataclass(frozen=True, kw_only=True)
class NodesRecord(Checksummed):
    """Plan and progress of giving a run's nodes back. Times are in ISO 8601, by the operator's clock.

    `pool` is the node pool's name and `pool_id` its id, which shrinks from `from_size` to `to_size` nodes; all four are
    None if a command of the operator does it. `usd_per_hour` is the price of all nodes before, described in `price`.
    `ended_at` is the end of the run. With `job`, the run's Job shrinks the pool, and its own record is on the shared
    volume; `reason` says why it keeps the nodes.
    """

    FILE, KIND = NODES_FILE, "nodes"

    run_id: str
    state: NodesState
    provider: str
    cluster: dict[str, str]
    pool_id: str | None = None
    pool: str | None = None
    from_size: int | None = None
    to_size: int | None = None
    usd_per_hour: float | None = None
    price: str | None = None
    ended_at: str | None = None
    requested_at: str | None = None
    finished_at: str | None = None
    work_request_id: str | None = None
    job: JobPool | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        for name in ("ended_at", "requested_at", "finished_at"):
            text = getattr(self, name)
            if text is not None and not _is_time(text):
                raise TrialError(f"{name}: expected a time in ISO 8601 with its zone, found {text[:80]!r}")

    def idle_sec(self, now: float) -> float | None:
        """Return the seconds from the run's end until the nodes were given back, or `now`; None before its end."""
        if self.ended_at is None:
            return None
        until = now if self.finished_at is None else datetime.fromisoformat(self.finished_at).timestamp()
        return max(0.0, until - datetime.fromisoformat(self.ended_at).timestamp())

    def idle_usd(self, now: float) -> float | None:
        """Return what the nodes have cost since the run's end; None if that or the price is unknown."""
        seconds = self.idle_sec(now)
        return None if seconds is None or self.usd_per_hour is None else seconds / 3600.0 * self.usd_per_hour


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
