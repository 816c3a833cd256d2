"""The fleet's pods as the cluster shows them: one list for all workers, read only when it is needed.

A worker is an index (the label that an Indexed Job puts on its pods), not a pod's name: a dead pod's replacement has
another name and the same index. For a while there can be two, and a pod on a dead node shows Running; `choose` picks
the one to talk to.

Not covered: pods that are no part of an Indexed Job.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from remote.cluster.errors import Unreachable
from remote.cluster.kubectl import Kubectl, not_installed, refusal
from remote.cluster.labels import INDEX_LABEL
from remote.hosts.host import CommandTimedOut, HostError, HostUnreachable
from remote.hosts.process import CannotStart, run_program

_READ_SEC = 20.0
_FRESH_SEC = 30.0
_NOT_BEFORE_SEC = 2.0
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
# Some fields of a pod, not all of it: what is kept of 400 pods is small.
LIST_TEMPLATE = "{range .items[*]}" + '{"\\t"}'.join(f"{{{field}}}" for field in _FIELDS) + '{"\\n"}{end}'


class PodGone(HostError):
    """No pod of this index lives: what ran in it has ended, and no answer will come."""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod as the cluster shows it. A name always means the same pod: a replacement has another one.

    `created_at` is RFC 3339 in UTC: its text order is its order in time.
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
        """In words: why this pod takes no command."""
        word = self.reason or self.phase
        where = f" on {self.node}" if self.node else ""
        terminating = ", being deleted" if self.is_terminating else ""
        ready = "" if self.is_ready or self.phase != "Running" else ", not Ready"
        return f"{self.name} is {word}{ready}{terminating}{where}"


class Pods:
    """The pods that `selector` finds. Safe to use from many threads; they share one reading."""

    def __init__(self, kubectl: Kubectl, selector: str, *, starting: bool = False) -> None:
        """`starting`: those that are not Ready yet count, too: their first containers take commands."""
        self.kubectl, self.selector, self.starting = kubectl, selector, starting
        self._lock = threading.Lock()
        self._pods: list[Pod] = []
        self._read_at: float | None = None
        self._failed: tuple[float, HostError] | None = None
        self._doubted = False

    def find(self, index: int) -> Pod:
        """The pod to talk to for this index. Raises PodGone, HostUnreachable and ClusterError.

        The list is read again when it is old, or after a doubt, at most every 2 s.
        """
        pods = self.all()
        try:
            among = f"{self.selector} in namespace {self.kubectl.namespace}"
            return choose(pods, index, among, starting=self.starting)
        except HostError:
            self.invalidate()  # a replacement comes within seconds; the next caller must not read the old list for 30 s
            raise

    def all(self) -> list[Pod]:
        """Every pod of the selector, read as `find` says."""
        with self._lock:
            now = time.monotonic()
            age_sec = None if self._read_at is None else now - self._read_at
            if age_sec is not None and age_sec <= (_NOT_BEFORE_SEC if self._doubted else _FRESH_SEC):
                return self._pods
            if self._failed is not None and now - self._failed[0] <= _NOT_BEFORE_SEC:
                raise self._failed[1]  # one failed reading answers all threads that waited
            was_doubted, self._doubted = self._doubted, False  # a doubt during the reading is about this reading
            try:
                self._pods = self._read()
            except HostError as error:
                self._failed, self._doubted = (time.monotonic(), error), was_doubted
                raise
            self._read_at = time.monotonic()
            return self._pods

    def invalidate(self) -> None:
        """Some pod of the list is, or may be, no longer as it was read."""
        self._doubted = True

    def _read(self) -> list[Pod]:
        argv = self.kubectl.argv(
            "get", "pods", f"--selector={self.selector}", "--request-timeout=10s", f"--output=jsonpath={LIST_TEMPLATE}"
        )
        try:
            completed = run_program(argv, label="kubectl get pods", timeout_sec=_READ_SEC)
        except CannotStart as error:
            raise not_installed(error) from None
        except CommandTimedOut as error:
            raise Unreachable(f"the cluster does not answer: {error}") from None
        if completed.exit_code != 0:
            raise refusal("kubectl get pods", completed.stderr.decode(errors="replace"), Unreachable)
        return parse(completed.stdout.decode(errors="replace"))


def parse(text: str) -> list[Pod]:
    """The pods in kubectl's answer to LIST_TEMPLATE; those without an index are left out."""
    pods = []
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) != len(_FIELDS) or not fields[1].isdigit():
            continue
        name, index, created, deleted, node, ip, phase, reason, ready = fields
        pods.append(
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
        )
    return pods


def choose(pods: Sequence[Pod], index: int, among: str, *, starting: bool = False) -> Pod:
    """The newest Ready pod of an index, or one that is `starting`; failing that, why there is none to talk to.

    A pod that is being deleted still counts as Ready for the cluster and still takes commands; its work would be lost.
    """
    of_index = sorted((pod for pod in pods if pod.index == index), key=lambda pod: pod.created_at, reverse=True)
    live = [pod for pod in of_index if not pod.is_terminating and pod.phase == "Running"]
    ready = [pod for pod in live if pod.is_ready]
    if starting:
        ready += [pod for pod in of_index if not pod.is_terminating and pod.phase in ("Pending", "Running")]
    if ready:
        return ready[0]
    if live:
        # A node that stopped answering takes Ready away from its pods; so does a probe that fails once.
        raise HostUnreachable(live[0].state)
    if of_index:
        raise PodGone("; ".join(pod.state for pod in of_index[:2]))
    raise PodGone(f"no pod has index {index} among {among}; `inv status` shows what there is")
