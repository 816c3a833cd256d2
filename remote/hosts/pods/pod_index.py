"""Cached list of the fleet's pods, shared by all workers and read on demand.

A worker is an index (the label that an Indexed Job puts on its pods), not a pod's name: a dead pod's replacement has
another name and the same index. Temporarily both exist, and a pod on a dead node is still Running; `choose` selects the
one to use.

Not covered: pods outside Indexed Jobs.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from remote.hosts.host_protocol import HostError, HostUnreachable
from remote.hosts.pods.kubectl import Kubectl, Unreachable, run_kubectl, to_cluster_error

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_READ_SEC = 20.0
_MAX_AGE_SEC = 30.0
_MIN_AGE_SEC = 2.0
_FIELDS = (
    ".metadata.name",
    rf".metadata.labels.{INDEX_LABEL.replace('.', chr(92) + '.')}",
    ".metadata.creationTimestamp",
    ".metadata.deletionTimestamp",
    ".spec.nodeName",
    ".status.podIP",
    ".status.phase",
    ".status.reason",
    '.status.conditions[?(@.type=="Ready")].status',
)
# Only the fields in use: a list of 400 pods stays small.
LIST_TEMPLATE = "{range .items[*]}" + '{"\\t"}'.join(f"{{{field}}}" for field in _FIELDS) + '{"\\n"}{end}'


class PodGone(HostError):
    """Index without a living pod: its commands have ended."""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """Listed state of one pod. Names are unique: a replacement has another one.

    `created_at` is RFC 3339 in UTC, so its text order is chronological.
    """

    name: str
    index: int
    created_at: str
    is_terminating: bool
    node: str
    ip: str
    phase: str
    reason: str
    is_ready: bool

    @property
    def state(self) -> str:
        """Text that explains why this pod accepts no command."""
        status = self.reason or self.phase
        location = f" on {self.node}" if self.node else ""
        terminating = ", being deleted" if self.is_terminating else ""
        ready = "" if self.is_ready or self.phase != "Running" else ", not Ready"
        return f"{self.name} is {status}{ready}{terminating}{location}"


class PodIndex:
    """Cached list of the pods that match `selector`. Thread-safe; concurrent callers share one request."""

    def __init__(self, kubectl: Kubectl, selector: str) -> None:
        self.kubectl, self.selector = kubectl, selector
        self._lock = threading.Lock()
        self._pods: list[Pod] = []
        self._read_at: float | None = None
        self._last_failure: tuple[float, HostError] | None = None
        self._is_invalidated = False

    def find(self, index: int) -> Pod:
        """Select the pod of this index. Raises PodGone, HostUnreachable and ClusterError.

        The list is refreshed if it is old or invalidated, at most every 2 s.
        """
        pods = self.all()
        try:
            return choose(pods, index, f"{self.selector} in namespace {self.kubectl.namespace}")
        except HostError:
            self.invalidate()  # a replacement comes within seconds, sooner than the list expires
            raise

    def all(self) -> list[Pod]:
        """Return all pods, refreshed as in `find`."""
        with self._lock:
            now = time.monotonic()
            age_sec = None if self._read_at is None else now - self._read_at
            if age_sec is not None and age_sec <= (_MIN_AGE_SEC if self._is_invalidated else _MAX_AGE_SEC):
                return self._pods
            if self._last_failure is not None and now - self._last_failure[0] <= _MIN_AGE_SEC:
                raise self._last_failure[1]  # all waiting threads share one failure
            # An invalidation during the request applies to its result.
            was_invalidated, self._is_invalidated = self._is_invalidated, False
            try:
                self._pods = self._read()
            except HostError as error:
                self._last_failure, self._is_invalidated = (time.monotonic(), error), was_invalidated
                raise
            self._read_at = time.monotonic()
            return self._pods

    def invalidate(self) -> None:
        """Mark the list as possibly outdated."""
        self._is_invalidated = True

    def _read(self) -> list[Pod]:
        argv = self.kubectl.argv(
            "get", "pods", f"--selector={self.selector}", "--request-timeout=10s", f"--output=jsonpath={LIST_TEMPLATE}"
        )
        completed = run_kubectl(argv, label="kubectl get pods", timeout_sec=_READ_SEC)
        if completed.exit_code != 0:
            raise to_cluster_error("kubectl get pods", completed.stderr.decode(errors="replace"), Unreachable)
        return parse(completed.stdout.decode(errors="replace"))


def parse(text: str) -> list[Pod]:
    """Parse kubectl's output for LIST_TEMPLATE. Pods without an index are ignored."""
    rows = (fields for line in text.splitlines() if len(fields := line.split("\t")) == len(_FIELDS))
    return [
        Pod(
            name=name,
            index=int(index),
            created_at=created,
            is_terminating=bool(deleted),
            node=node,
            ip=ip,
            phase=phase,
            reason=reason,
            is_ready=ready == "True",
        )
        for name, index, created, deleted, node, ip, phase, reason, ready in rows
        if index.isdecimal()
    ]


def choose(pods: Sequence[Pod], index: int, scope: str) -> Pod:
    """Select the newest Ready pod of an index. Raises HostUnreachable or PodGone with the reason.

    A pod that is being deleted is still Ready and accepts commands, but their work would be lost.
    """
    of_index = sorted((pod for pod in pods if pod.index == index), key=lambda pod: pod.created_at, reverse=True)
    live = [pod for pod in of_index if not pod.is_terminating and pod.phase == "Running"]
    ready = [pod for pod in live if pod.is_ready]
    if ready:
        return ready[0]
    if live:
        # Not Ready: the node stopped answering, or a probe failed once.
        raise HostUnreachable(live[0].state)
    if of_index:
        raise PodGone("; ".join(pod.state for pod in of_index[:2]))
    raise PodGone(f"no pod has index {index} among {scope}", remedy="see `inv status`")
