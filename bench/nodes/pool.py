"""A pool of nodes as its provider describes it, and the rule under which a Job may shrink it.

A provider's module has `open_pools(job)`, which returns a `Pools`. Its SDK is in a folder of its own in the image, so
that its packages do not change the training's.
"""

import importlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from bench.records.nodes import JobPool, NodesRecord

SDK_FOLDER = "/opt/cloud-sdk"  # see image/Dockerfile
MODULES: Mapping[str, str] = {"oci": "bench.nodes.oke"}  # by the provider's name


class PoolError(Exception):
    """A failed request to the provider. `is_transient`: a retry may help. `is_denied`: a right may be missing."""

    def __init__(self, problem: str, *, is_transient: bool = False, is_denied: bool = False) -> None:
        super().__init__(problem)
        self.is_transient, self.is_denied = is_transient, is_denied


@dataclass(frozen=True, kw_only=True)
class PoolState:
    """A pool: its requested size, the IP address of each node that exists (None: unknown), and its version.

    `failures` are the errors of nodes that could not be removed.
    """

    size: int
    addresses: tuple[str | None, ...]
    etag: str | None
    failures: tuple[str, ...] = ()


class Pools(Protocol):
    """Access to the pools of one region."""

    def read(self, pool_id: str) -> PoolState:
        """Read a pool. Raises PoolError."""

    def resize(self, pool_id: str, size: int, etag: str | None) -> str | None:
        """Request a size if the pool still has this etag; return the work request's id if known. Raises PoolError."""


class PoolsModule(Protocol):
    """Module of a provider."""

    def open_pools(self, job: JobPool) -> Pools:
        """Get the pod's credentials and return the access to its pools. Raises PoolError."""


def open_pools(record: NodesRecord) -> Pools:
    """Return the access to the pools of the plan's provider. Raises PoolError."""
    name = MODULES.get(record.provider)
    if name is None or record.job is None:
        raise PoolError(f"provider {record.provider} has no node pools that a Job can shrink")
    if SDK_FOLDER not in sys.path:
        sys.path.append(SDK_FOLDER)  # last: packages that both have are the training's
    try:
        module = cast(PoolsModule, importlib.import_module(name))
    except ImportError as error:
        raise PoolError(f"the image has no SDK of provider {record.provider} ({error}); build it again") from error
    return module.open_pools(record.job)


def not_whole(record: NodesRecord, pool: PoolState, pods: Sequence[str]) -> str | None:
    """Return why the Job may not hold every GPU of the pool's nodes; None if it holds all of them.

    `pods` has the address of the node of each pod of the Job.
    """
    if record.job is None:
        return "its plan does not name the GPUs of a node"
    per_node = Counter(pods)
    if len(pool.addresses) != pool.size or set(pool.addresses) != set(per_node):
        nodes = ", ".join(sorted(str(address) for address in pool.addresses)) or "none"
        return f"the Job's pods are on {', '.join(sorted(per_node))}, and the nodes of the pool are {nodes}"
    for address, count in sorted(per_node.items()):
        held, whole = count * record.job.gpus_per_pod, record.job.gpus_per_node
        if held != whole:
            return f"the Job holds {held} of the {whole} GPUs of node {address}"
    return None
