"""What several checks ask for: each thing is found out once, by a thread of its own, when the first check wants it."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from invoke.config import Config

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import NodeReport, examine
from remote.cluster.errors import Forbidden
from remote.cluster.manifests import Image
from remote.hosts.host import Host, HostError
from remote.image import engine, vm_info, workdir
from remote.image.engine import EngineFacts
from tasks.clients.build_vm import build_vm, tmpdir_on, to_task_error
from tasks.clients.cluster import errors, target_of
from tasks.clients.image_ref import image_of
from tasks.cluster.nodes import need_of
from tasks.doctor.result import Skipped
from tasks.errors import UsageError
from tasks.image.build import client
from tasks.settings.load import Settings

T = TypeVar("T")
R = TypeVar("R")
WITHIN_SEC = 20.0  # for every check, all of them at once
_LATER_SEC = 1.0  # a check that waits for another's fact ends before its own deadline, and says which


class SharedFact(Generic[T]):
    """A fact, or the error that came instead. `title` is the check that says that error; others refer to it."""

    def __init__(self, make: Callable[[], T], title: str) -> None:
        self._make, self._title = make, title
        self._began, self._known = threading.Lock(), threading.Event()
        self._value: T | None = None
        self._error: Exception | None = None

    def first(self, within_sec: float = WITHIN_SEC) -> T:
        """The fact, for the check that says what is wrong with it. Raises what finding it out raises."""
        if self._began.acquire(blocking=False):
            threading.Thread(target=self._find, name=f"doctor: {self._title}", daemon=True).start()
        if not self._known.wait(within_sec):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def get(self) -> T:
        """The fact, for every other check. Raises NotAsked where it could not be found out."""
        try:
            return self.first(WITHIN_SEC - _LATER_SEC)
        except Skipped:
            raise
        except Exception:  # noqa: BLE001 - whatever it is, the other check says it
            raise Skipped(f"see {self._title}") from None

    def _find(self) -> None:
        try:
            self._value = self._make()
        except Exception as error:  # noqa: BLE001 - it is raised again in the thread that asked
            self._error = error
        self._known.set()


class CheckContext:
    """The settings, and what is found out about machines and cluster. `only`: the subjects named by the operator."""

    def __init__(self, settings: Settings, config: Config, only: frozenset[str] = frozenset()) -> None:
        self.settings, self.config, self.only = settings, config, only
        self.cluster = SharedFact(self._cluster, "cluster reachable")
        self.version = SharedFact(self._version, "cluster reachable")
        self.nodes = SharedFact(self._nodes, "nodes enough")
        self.vm = SharedFact(self._vm, "vm connection")
        self.machine = SharedFact(lambda: self.on_vm(vm_info.observe), "vm connection")
        self.engine = SharedFact(self._engine, "vm engine")
        self._closing = contextlib.ExitStack()

    def close(self) -> None:
        self._closing.close()

    def _cluster(self) -> Cluster:
        section = self.settings.cluster
        is_meant = self.settings.fleet.kind == "pods" or section.context or section.kubeconfig or section.image
        if not is_meant and not self.only & {"cluster", "nodes", "pods"}:
            raise Skipped("fleet.kind is local and cluster.context null; --only cluster,nodes,pods asks all the same")
        target = target_of(self.settings)
        with errors():
            found = Cluster(target)
        self._closing.callback(found.close)
        return found

    def _version(self) -> tuple[str, float | None]:
        with errors():
            return self.cluster.first().version()

    @contextlib.contextmanager
    def reached(self) -> Iterator[Cluster]:
        """The cluster, whose errors become a task's. Raises NotAsked where it does not answer: one line is enough."""
        self.version.get()
        with errors():
            yield self.cluster.get()

    def _nodes(self) -> list[NodeReport]:
        with self.reached() as cluster:
            nodes = cluster.nodes()
            try:
                pods = cluster.pods_everywhere()
            except Forbidden:
                pods = None
        try:
            image: Image | None = image_of(self.settings)
        except UsageError:  # none was pushed or named
            image = None
        with errors():
            return examine(nodes, pods, need_of(self.settings, image))

    def _vm(self) -> Host:
        if self.settings.build.host is None and not self.only & {"vm", "registry"}:
            raise Skipped("build.host is null: this machine builds; --only vm,registry asks it all the same")
        return self._closing.enter_context(build_vm(self.settings, "inv doctor"))

    def _engine(self) -> EngineFacts:
        self.machine.get()
        return self.on_vm(lambda host: engine.observe(host, client(self.settings)))

    def on_vm(self, ask: Callable[[Host], R]) -> R:
        """What `ask` says of the build VM; its errors as a task's. Raises NotAsked where there is none to ask."""
        host = self.vm.first()
        with as_of_vm():
            return ask(host)

    def tmpdir(self, host: Host) -> str:
        """The folder for large files on the VM, closed to others or not there yet. Raises HostError."""
        tmp = tmpdir_on(self.settings, host, None)
        workdir.claim(host, tmp, make=False)
        return tmp


@contextlib.contextmanager
def as_of_vm() -> Iterator[None]:
    """The build VM's errors as a task's."""
    try:
        yield
    except HostError as error:
        raise to_task_error(error, "inv doctor") from None
