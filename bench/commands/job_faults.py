"""Nodes of a training's Job whose GPU showed a fault: no later attempt of the Job's turn runs there.

The pod with the GPU records its node on the shared volume and ends with ExitCode.WORKER_FAULTY, which the Job does not
count as a failure: Kubernetes places its replacement. One that comes to the same node again ends so, too. A node that
an operator or an agent cordons is not chosen any more; without that, the training ends after MAX_RETURNS as LOST with
the cause `gpu_fault` and the node's name, and does not restart forever on a sick GPU.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench.records import paths
from bench.records.checksummed import ResultError, read_checksummed, write_checksummed
from bench.records.run import TrainingJobEnd, TrainingJobSpec
from bench.records.status import ReasonCode

MAX_RETURNS = 5
RETURN_DELAY_SEC = 20.0  # in which the node may be cordoned
_NODE_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,200}\Z")
_KIND = "faulty node"


@dataclass(frozen=True, kw_only=True)
class FaultyNode:
    """A node whose GPU showed a fault in an attempt, and how often a pod of the Job came to it again."""

    node: str
    rank: int
    attempt: int
    reason: str
    returns: int = 0


class NodeFaults:
    """Record of this pod's node. Without its valid name nothing is recorded."""

    def __init__(self, order: TrainingJobSpec, rank: int, node: str, folder: Path) -> None:
        self._order, self._rank, self._folder = order, rank, folder
        self._node = node if _NODE_NAME.match(node) else None

    def record(self, attempt: int, reason: str) -> bool:
        """Record that this node's GPU showed a fault; False if the node's name is not known. Raises OSError."""
        if self._node is None:
            return False
        self._write(FaultyNode(node=self._node, rank=self._rank, attempt=attempt, reason=reason))
        print(f"{self._order.run_id}: node {self._node}: {reason}; this pod leaves it", flush=True)
        return True

    def on_return(self, is_stopped: Callable[[], bool]) -> tuple[bool, TrainingJobEnd | None]:
        """Return (the pod must leave its node, the training's end if it never does).

        Waits before a pod leaves again. Raises OSError.
        """
        fault = self._read()
        if fault is None:
            return False, None
        fault = replace(fault, returns=fault.returns + 1)
        self._write(fault)
        if fault.returns >= MAX_RETURNS:
            reason = f"node {fault.node}, rank {fault.rank}: {fault.reason}; no other node took its pod"
            code = ReasonCode.GPU_FAULT
            end = TrainingJobEnd(
                attempt=fault.attempt, end=code.status, reason=reason, reason_code=code, node=fault.node
            )
            return True, end
        print(f"{self._order.run_id}: node {fault.node} is faulty, and this pod leaves it again", flush=True)
        until = time.monotonic() + RETURN_DELAY_SEC
        while not is_stopped() and time.monotonic() < until:
            time.sleep(0.1)
        return True, None

    def _path(self, node: str) -> Path:
        return self._folder / paths.FAULTY_NODE_FILE.format(turn=self._order.turn, node=node)

    def _read(self) -> FaultyNode | None:
        if self._node is None or not self._path(self._node).exists():
            return None
        try:
            return read_checksummed(FaultyNode, self._path(self._node), _KIND)
        except ResultError as error:  # it exists only for a faulty node
            return FaultyNode(node=self._node, rank=self._rank, attempt=0, reason=str(error))

    def _write(self, fault: FaultyNode) -> None:
        write_checksummed(self._path(fault.node), _KIND, fault)
