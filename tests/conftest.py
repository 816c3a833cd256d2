"""Fixtures and hooks for all tests: the demo's model and data, trials, fork servers, and the order of the tests."""

import contextlib
import fcntl
import gc
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.records import Trial
from bench.records.atomic_files import write_atomic
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from tests.support.forked import BENCH_LIBRARIES, INV_LIBRARIES, ForkServer
from tests.support.hosts.local_fleet import LocalFleet, mounted_tmpfs
from tests.support.machines.ssh_client import SshClient
from tests.support.machines.sshd import Sshd
from tests.support.paths import ROOT

# Cache rewritten asserts for the other workers and the next run, even if the environment disables bytecode files.
sys.dont_write_bytecode = False
# With one thread per core, several workers contend: 6 s of processor time for a test of recipes, 0.3 s with one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# kubectl starts faster without garbage collection: 70 ms of processor time instead of 120.
os.environ.setdefault("GOGC", "off")
os.environ.setdefault("GOMEMLIMIT", "256MiB")
# A width that the caller or xdist sets would wrap what tests read.
os.environ.pop("COLUMNS", None)
# Collecting the tests creates half a million objects and no garbage: saves 1.4 s of processor time in each worker.
gc.disable()
# One worker runs all of the build VM's tests: they share one VM and check for leftovers on this machine. The files in
# OWN_MACHINES create machines of their own.
BUILD_VM_TESTS = "tests/system/image/"
OWN_MACHINES = (f"{BUILD_VM_TESTS}test_model_fetch.py", f"{BUILD_VM_TESTS}test_inv_vm.py")
# These import the training stack: 2.8 s of processor time in each worker that runs one of them.
STACK = "tests/unit/bench/"
STACK_FOLDERS = tuple(
    f"{STACK}{folder}/" for folder in ("adapter", "architectures", "kernels", "workloads/finetune", "predict", "qlora")
)
# The longest tests run first.
FOLDER_ORDER = (
    BUILD_VM_TESTS,
    "tests/system/",
    "tests/faults/",
    "tests/test_sources.py",
    STACK,
    "tests/integration/",
    "tests/",
)
# The tests of these files share nothing, so different workers may run them.
SPLIT_FILES = ("tests/system/fleet/test_inv_bench.py", "tests/system/tuning/test_inv_tune.py")


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the folder for files that all workers of a session share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture
def restored_signals() -> Iterator[None]:
    """Restore signal handlers and timer, which pytest uses for its deadline and `bench.commands.run.run` replaces."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    handlers, timer = [signal.getsignal(number) for number in numbers], signal.getitimer(signal.ITIMER_REAL)
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`bench` and `tasks`, compiled, for copies of the project that are hard links: 0.03 s instead of 0.4 for each.

    A test that changes a file in its copy removes the link first.
    """
    folder = tmp_path_factory.mktemp("sources")
    for name in ("bench", "tasks"):
        shutil.copytree(ROOT / name, folder / name)
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*.py")}
    yield folder
    changed = [path for path, modified in files.items() if path.stat().st_mtime_ns != modified]
    assert not changed, "a test wrote into a file of all copies"


@pytest.fixture(scope="session")
def bench_environment() -> dict[str, str]:
    """Environment of bench processes: the package on PYTHONPATH, one thread, GPUs hidden."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="session")
def _demo(
    tmp_path_factory: pytest.TempPathFactory, bench_environment: dict[str, str], bench_server: ForkServer
) -> tuple[Path, Path]:
    base = shared_folder(tmp_path_factory)
    model, data = base / "models" / "qlora-fleet--tiny", base / "data" / "chats.jsonl"
    arguments = ("-m", "bench", "demo", "--model", str(model), "--data", str(data))
    with (base / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the command verifies the files if another worker has created them
        with bench_server.start(*arguments, env=bench_environment, stdout=subprocess.DEVNULL) as process:
            assert process.wait(timeout=240) == 0
    return model, data


@pytest.fixture(scope="session")
def tiny_model(_demo: tuple[Path, Path]) -> Path:
    """The demo's model folder. Shared: copy it before changing anything."""
    return _demo[0]


@pytest.fixture(scope="session")
def demo_data(_demo: tuple[Path, Path]) -> Path:
    """The demo's data file. Shared: copy it before changing anything."""
    return _demo[1]


@pytest.fixture(scope="session")
def tiny_data(demo_data: Path) -> Path:
    """The demo's first 512 chats: every operator, trial and rank reads the whole file, and a long trial tokenizes it.

    In the folder of `demo_data`, which pods can read. Shared: copy it before changing anything.
    """
    few = demo_data.with_name("few.jsonl")
    with demo_data.open("rb") as lines:
        write_atomic(few, b"".join(itertools.islice(lines, 512)))
    return few


@pytest.fixture(scope="session")
def make_trial() -> Callable[..., Trial]:
    """Function that makes a small valid trial; keywords replace fields. Model and data do not exist by default."""

    def make(**changes: Any) -> Trial:
        fields: dict[str, Any] = {
            "name": "small",
            "reason": "a test",
            "suite": "test",
            "profile": "tiny",
            "model": "models/none--none",
            "data": "data/none.jsonl",
            "max_seq_len": 32,
            "micro_batch_size": 2,
            "warmup_steps": 1,
            "measured_steps": 2,
        }
        return Trial(**(fields | changes))

    return make


@pytest.fixture(scope="session")
def ssh_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshClient]:
    """A real sshd on loopback for the current user, and a client configuration with a key that it accepts."""
    with Sshd(tmp_path_factory.mktemp("sshd") / "server") as sshd:
        yield SshClient(tmp_path_factory.mktemp("client"), sshd)


def pytest_configure() -> None:
    """Restore SIGINT, so that child processes react to Ctrl-C.

    A script starts background processes with SIGINT ignored, and their children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def inv_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Server that forks `inv`, for tests that do not test its start."""
    with _server(tmp_path_factory, "inv", INV_LIBRARIES) as server:
        yield server


@pytest.fixture(scope="session")
def bench_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Server that forks `python -m bench`, for tests that do not test its start or imports."""
    with _server(tmp_path_factory, "bench", BENCH_LIBRARIES) as server:
        yield server


@contextlib.contextmanager
def _server(factory: pytest.TempPathFactory, name: str, libraries: Sequence[str]) -> Iterator[ForkServer]:
    """Provide one server for all workers of a session: the first that needs it starts it; it ends with pytest."""
    folder = shared_folder(factory) / name
    if folder.parent == factory.getbasetemp():
        folder.mkdir()
        with ForkServer(folder, libraries) as server:
            yield server
        return
    folder.mkdir(exist_ok=True)
    server = ForkServer(folder, libraries, until=os.getppid())
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not server.path.exists():
            server.__enter__()
            server.detach()
    yield server


@pytest.fixture
def run_trial(
    bench_server: ForkServer, bench_environment: dict[str, str], tmp_path: Path
) -> Callable[..., tuple[TrialResult, str]]:
    """Function that runs a trial to success, with an empty stderr; returns its result and its output."""

    def run(trial: Trial, *before: str) -> tuple[TrialResult, str]:
        (tmp_path / "trial.json").write_text(trial.to_text())
        code = "\n".join((*before, "import runpy", "runpy.run_module('bench', run_name='__main__')"))
        arguments = ("-c", code, "run", "--trial", str(tmp_path / "trial.json"), "--out", str(tmp_path / "out"))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with bench_server.start(*arguments, env=bench_environment, **pipes) as process:
            output, errors = process.communicate(timeout=240)
        assert (process.returncode, errors) == (0, "")
        result = TrialResult.read(tmp_path / "out" / "result.json")
        assert (result.status, result.reason) == (TrialStatus.SUCCEEDED, None)
        return result, output

    return run


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalFleet]:
    """Hosts in separate folders on this machine. Test files override this fixture for other kinds of hosts."""
    with LocalFleet(tmp_path) as local:
        yield local


@pytest.fixture
def short_claim_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the ten seconds for which a job start waits for a slot."""
    monkeypatch.setattr("remote.jobs.job.CLAIM_SEC", 0.1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; skips the test if mounting is not permitted."""
    with mounted_tmpfs(tmp_path / "small") as folder:
        yield folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: [item.nodeid.startswith(folder) for folder in FOLDER_ORDER].index(True))
    gc.freeze()  # the tests stay; later collections need not look at them
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of `pytest -n`: units of work in the order of collection, each run by one worker."""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return Units(config, log)


def unit_of(nodeid: str) -> str:
    """Return the unit of work that a test belongs to: one worker runs a file's tests, because they share servers."""
    file = nodeid.partition("::")[0]
    if file in SPLIT_FILES:
        return nodeid
    if file.startswith(STACK_FOLDERS):
        return STACK
    return BUILD_VM_TESTS if file.startswith(BUILD_VM_TESTS) and file not in OWN_MACHINES else file


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print each reason for skipped tests, and the command that installs missing programs."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
    if any(
        re.search(r"is not installed|apt-get install|cluster needs [a-z]|needs a C compiler", reason)
        for reason in reasons
    ):
        terminalreporter.line("`make system` installs the missing programs (as root, on Debian)")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup(
        "cluster", "a real cluster instead of the fake one (tests/support/kubernetes/real_cluster.py)"
    )
    group.addoption("--kubeconfig", help="run the cluster tests on this file's current context")
    group.addoption(
        "--cluster-image", default="busybox:1.36", help="image of its pods, preferably one that `inv push` pushed"
    )
    group.addoption("--cluster-registry-user", help="user who may pull it; password in QLORA_FLEET_TEST_PASSWORD")
    group.addoption("--cluster-instance-type", default="VM.GPU.A10.1", help="instance-type label of its GPU nodes")
    group.addoption("--cluster-volume", help='volume that all its nodes share, as in a PV: {"nfs": {"server": ...}}')
    group.addoption("--cluster-volume-here", help="folder of that volume's files on this machine")


def pytest_report_header(config: pytest.Config) -> str:
    return f"cluster: {config.getoption('kubeconfig') or 'fake'}"
