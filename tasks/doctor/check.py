"""Check with its question, function and possible faults, list of one subject, and parallel run with a deadline.

Facts shared by checks, each computed once, lazily, in its own thread.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Generic, TypeVar

from remote.cluster.diagnosis.nodes import NodeReport
from remote.cluster.manifests import Image
from remote.cluster.namespace_client import Cluster
from remote.hosts.host_protocol import Host, HostError
from remote.hosts.pods.kubectl import Forbidden
from remote.image import engine, vm_jobs
from remote.image.engine import EngineFacts
from tasks.clients.build_vm import build_vm, resolve_tmpdir, to_task_error
from tasks.clients.registry import resolve_image
from tasks.clients.target_cluster import known_provider, place_pods, resolve_target, translate_cluster_errors
from tasks.cluster.node_list import node_reports
from tasks.errors import RetryableError, TaskFailed, UsageError
from tasks.faults import CheckResult, CheckStatus, Fault, Skipped, from_error, passed
from tasks.settings.layers import Settings

T = TypeVar("T")
R = TypeVar("R")
TIMEOUT_SEC = 20.0  # for all checks, which run in parallel
_MARGIN_SEC = 1.0  # a check that waits for another check's fact ends before its own deadline, to name that check


class SharedFact(Generic[T]):
    """Value or error of a computation. `title` names the check that reports the error; other checks refer to it."""

    def __init__(self, compute: Callable[[], T], title: str) -> None:
        self._compute, self._title = compute, title
        self._start_lock, self._future = threading.Lock(), Future[T]()

    def start(self) -> None:
        """Start the computation in a daemon thread, unless it has been started."""
        if self._start_lock.acquire(blocking=False):
            threading.Thread(target=self._run, name=f"doctor: {self._title}", daemon=True).start()

    def get_or_raise(self, timeout_sec: float = TIMEOUT_SEC) -> T:
        """Return the value, for the check that reports its errors. Raises the computation's error, or TimeoutError."""
        self.start()
        return self._future.result(timeout_sec)

    def get_or_skip(self) -> T:
        """Return the value, for every other check. Raises Skipped if the computation failed."""
        try:
            return self.get_or_raise(TIMEOUT_SEC - _MARGIN_SEC)
        except Skipped:
            raise
        except Exception as error:
            raise Skipped(f"see {self._title}") from error

    def _run(self) -> None:
        try:
            self._future.set_result(self._compute())
        except Exception as error:  # noqa: BLE001 - raised again in the thread that called `get_or_raise`
            self._future.set_exception(error)


class CheckContext:
    """Settings, and shared facts about machines and the cluster. `only`: the subjects named by the operator."""

    def __init__(self, settings: Settings, only: frozenset[str] = frozenset()) -> None:
        self.settings, self.only = settings, only
        self.cluster = SharedFact(self._cluster, "cluster reachable")
        self.version = SharedFact(lambda: self.cluster.get_or_raise().version(), "cluster reachable")
        self.nodes = SharedFact(self._nodes, "nodes enough")
        self.vm = SharedFact(self._vm, "vm connection")
        self.machine = SharedFact(lambda: self.on_vm(vm_jobs.observe), "vm connection")
        self.engine = SharedFact(self._engine, "vm engine")
        self._exit_stack = contextlib.ExitStack()

    def close(self) -> None:
        self._exit_stack.close()

    def _cluster(self) -> Cluster:
        section = self.settings.cluster
        is_used = self.settings.connector.is_cluster or section.context or section.kubeconfig or section.image
        if not is_used and not self.only & {"cluster", "nodes", "pods"}:
            raise Skipped("fleet.kind is local and cluster.context null; --only cluster,nodes,pods checks it anyway")
        cluster = Cluster(resolve_target(self.settings), known_provider(self.settings))
        self._exit_stack.callback(cluster.close)
        return cluster

    @contextlib.contextmanager
    def open_cluster(self) -> Iterator[Cluster]:
        """Yield the cluster. Raises Skipped if it does not answer.

        Also for what this account may not read: the check of its rights says whether they are enough.
        """
        self.version.get_or_skip()
        try:
            yield self.cluster.get_or_skip()
        except Forbidden as error:
            raise Skipped(error.problem) from error

    def _nodes(self) -> list[NodeReport]:
        try:
            image: Image | None = resolve_image(self.settings)
        except UsageError:  # no image was pushed or set
            image = None
        with self.open_cluster() as cluster:
            placement = place_pods(self.settings.cluster, cluster.provider)
            return node_reports(cluster, placement, image, warn=lambda _: None)

    def _vm(self) -> Host:
        if self.settings.build.host is None and not self.only & {"vm", "registry"}:
            raise Skipped("build.host is null: this machine builds; --only vm,registry checks it anyway")
        return self._exit_stack.enter_context(build_vm(self.settings, "inv doctor"))

    def _engine(self) -> EngineFacts:
        self.machine.get_or_skip()

        def observe(host: Host) -> EngineFacts:
            with engine.connect(host, self.settings.image.client) as vm_engine:
                return vm_engine.observe()

        return self.on_vm(observe)

    def on_vm(self, function: Callable[[Host], R]) -> R:
        """Call `function` with the build VM. Raises Skipped if no VM is used."""
        return function(self.vm.get_or_raise())

    def tmpdir(self, host: Host) -> str:
        """Return the folder for large files on the VM; our folder in it is private or missing. Raises HostError."""
        tmp = resolve_tmpdir(self.settings, host, None)
        vm_jobs.claim(host, vm_jobs.workdir_path(tmp), create=False)
        return tmp


CheckFunction = Callable[[CheckContext], CheckResult | Iterable[CheckResult]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question. `run` returns its results, or raises Skipped or a task's error, which becomes a result.

    `faults` are those that `run` itself reports, for the document; `fine` is what to say if it has no result.
    """

    subject: str
    name: str
    question: str
    run: CheckFunction
    faults: tuple[Fault, ...] = ()
    fine: str = ""

    @property
    def title(self) -> str:
        return f"{self.subject} {self.name}"


class Checks(list[Check]):
    """List of the checks of one subject, in the order of their output."""

    def __init__(self, subject: str) -> None:
        super().__init__()
        self._subject = subject

    def register(
        self, name: str, question: str, *faults: Fault, fine: str = ""
    ) -> Callable[[CheckFunction], CheckFunction]:
        """Return a decorator that registers the function as the `run` of a check."""

        def add(function: CheckFunction) -> CheckFunction:
            known = Check(subject=self._subject, name=name, question=question, run=function, faults=faults, fine=fine)
            self.append(known)
            return function

        return add


def run_checks(
    checks: Sequence[Check], context: CheckContext, timeout_sec: float = TIMEOUT_SEC
) -> Iterator[tuple[Check, list[CheckResult]]]:
    """Run the checks in parallel. Yields each with its results, in the order of `checks`.

    A check that hangs is abandoned: its daemon thread ends with the command.
    """
    deadline = monotonic() + timeout_sec
    facts = [SharedFact(partial(run_check, check, context), check.title) for check in checks]
    for fact in facts:
        fact.start()
    for check, fact in zip(checks, facts, strict=True):
        try:
            yield check, fact.get_or_raise(max(0.0, deadline - monotonic()))
        except TimeoutError:
            yield check, [_timeout_result(timeout_sec)]


def run_check(check: Check, context: CheckContext) -> list[CheckResult]:
    """Run a check and return its results; every error becomes a result."""
    try:
        with translate_cluster_errors():
            results = check.run(context)
            return [results] if isinstance(results, CheckResult) else [*results] or [passed(check.fine)]
    except Skipped as reason:
        return [CheckResult(status=CheckStatus.SKIP, message=str(reason))]
    except (TaskFailed, HostError) as error:
        failure = to_task_error(error, "inv doctor") if isinstance(error, HostError) else error
        return [from_error(failure, is_transient=isinstance(failure, RetryableError))]
    except TimeoutError:
        return [_timeout_result(TIMEOUT_SEC)]
    except OSError as error:
        return [from_error(error)]
    except Exception as error:  # noqa: BLE001 - a bug in one check must not hide the results of the others
        message = f"the check itself failed: {type(error).__name__}: {error}"
        remedy = "report it, with the output of `inv doctor --json`"
        return [CheckResult(status=CheckStatus.FAIL, message=message, remedy=remedy)]


def _timeout_result(timeout_sec: float) -> CheckResult:
    message = f"no answer within {timeout_sec:g} s"
    remedy = "check the network, the VPN or the bastion, then rerun `inv doctor`"
    return CheckResult(status=CheckStatus.FAIL, message=message, remedy=remedy, is_transient=True)
