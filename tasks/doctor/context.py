"""Facts shared by checks, each computed once, lazily, in its own thread."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar

from invoke.config import Config

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import NodeReport
from remote.cluster.manifests import Image
from remote.hosts.base import Host, HostError
from remote.image import engine, vm_info
from remote.image.engine import EngineFacts
from tasks.clients.build_vm import build_vm, resolve_tmpdir, to_task_error
from tasks.clients.cluster import known_provider, resolve_provider, resolve_target, translate_cluster_errors
from tasks.clients.registry import resolve_image
from tasks.cluster.nodes import node_reports, pod_requirements
from tasks.errors import UsageError
from tasks.faults import Skipped
from tasks.image.build import engine_client
from tasks.settings.load import Settings

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

    def __init__(self, settings: Settings, config: Config, only: frozenset[str] = frozenset()) -> None:
        self.settings, self.config, self.only = settings, config, only
        self.cluster = SharedFact(self._cluster, "cluster reachable")
        self.version = SharedFact(self._version, "cluster reachable")
        self.nodes = SharedFact(self._nodes, "nodes enough")
        self.vm = SharedFact(self._vm, "vm connection")
        self.machine = SharedFact(lambda: self.on_vm(vm_info.observe), "vm connection")
        self.engine = SharedFact(self._engine, "vm engine")
        self._exit_stack = contextlib.ExitStack()

    def close(self) -> None:
        self._exit_stack.close()

    def _cluster(self) -> Cluster:
        section = self.settings.cluster
        is_used = self.settings.connector.is_cluster or section.context or section.kubeconfig or section.image
        if not is_used and not self.only & {"cluster", "nodes", "pods"}:
            raise Skipped("fleet.kind is local and cluster.context null; --only cluster,nodes,pods checks it anyway")
        target = resolve_target(self.settings)
        with translate_cluster_errors():
            cluster = Cluster(target, known_provider(self.settings))
        self._exit_stack.callback(cluster.close)
        return cluster

    def _version(self) -> tuple[str, float | None]:
        with translate_cluster_errors():
            return self.cluster.get_or_raise().version()

    @contextlib.contextmanager
    def open_cluster(self) -> Iterator[Cluster]:
        """Yield the cluster, whose errors become task errors. Raises Skipped if it does not answer."""
        self.version.get_or_skip()
        with translate_cluster_errors():
            yield self.cluster.get_or_skip()

    def _nodes(self) -> list[NodeReport]:
        try:
            image: Image | None = resolve_image(self.settings)
        except UsageError:  # no image was pushed or set
            image = None
        with self.open_cluster() as cluster:
            need = pod_requirements(resolve_provider(self.settings, cluster), image)
            return node_reports(cluster, need, warn=lambda _: None)

    def _vm(self) -> Host:
        if self.settings.build.host is None and not self.only & {"vm", "registry"}:
            raise Skipped("build.host is null: this machine builds; --only vm,registry checks it anyway")
        return self._exit_stack.enter_context(build_vm(self.settings, "inv doctor"))

    def _engine(self) -> EngineFacts:
        self.machine.get_or_skip()
        return self.on_vm(lambda host: engine.observe(host, engine_client(self.settings)))

    def on_vm(self, function: Callable[[Host], R]) -> R:
        """Call `function` with the build VM; its errors become task errors. Raises Skipped if no VM is used."""
        host = self.vm.get_or_raise()
        with translate_vm_errors():
            return function(host)

    def tmpdir(self, host: Host) -> str:
        """Return the folder for large files on the VM; our folder in it is private or missing. Raises HostError."""
        tmp = resolve_tmpdir(self.settings, host, None)
        vm_info.claim(host, tmp, create=False)
        return tmp


@contextlib.contextmanager
def translate_vm_errors() -> Iterator[None]:
    """Turn errors of the build VM into task errors."""
    try:
        yield
    except HostError as error:
        raise to_task_error(error, "inv doctor") from error
