"""What tests of every folder share: the demo's model and data, made once a session, and trials to run on them."""

import contextlib
import fcntl
import gc
import itertools
import os
import re
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
from bench.records.result import TrialResult, TrialStatus
from tests.support.forked import BENCH, INV, ForkServer
from tests.support.hosts.local_fleet import LocalFleet, mounted
from tests.support.machines.ssh_client import SshClient
from tests.support.machines.sshd import Sshd
from tests.support.paths import ROOT
from tests.support.workers import Workers, shared_folder

# Rewritten asserts are kept for the next worker, and the next time, also where the environment says to keep nothing.
sys.dont_write_bytecode = False
# A thread a core in several workers wait for each other: 6 s of processor time for a test of recipes; with one 0.3 s.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A kubectl's start makes garbage that is not worth collecting: 70 ms of processor time instead of 120.
os.environ.setdefault("GOGC", "off")
os.environ.setdefault("GOMEMLIMIT", "256MiB")
# Half a million objects are made while tests are collected, and none of them is garbage: 1.4 s of processor time less.
gc.disable()
# In this order: what takes minutes by itself must not be begun last. The build VM's tests share one VM, and look at
# what is left on this machine, but for those with machines of their own; of the files in APART each test brings
# everything of its own.
SHARED = "tests/system/image/"
OWN_MACHINES = (f"{SHARED}test_model_fetch.py", f"{SHARED}test_inv_vm.py")
# These import the training stack, 2.8 s of processor time in each worker that has one of them.
STACK = "tests/unit/bench/"
OF_STACK = tuple(f"{STACK}{room}/" for room in ("adapter", "kernels", "workloads/finetune", "predict", "qlora"))
FIRST = (SHARED, "tests/system/", "tests/faults/", "tests/test_sources.py", STACK, "tests/integration/", "tests/")
APART = ("tests/system/fleet/test_inv_bench.py", "tests/system/tuning/test_inv_tune.py")


@pytest.fixture
def signals_given_back() -> Iterator[None]:
    """`bench.commands.run.run` takes signals and timer of its process for its own; in a test they are pytest's, its
    deadline."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    kept, timer = [signal.getsignal(number) for number in numbers], signal.getitimer(signal.ITIMER_REAL)
    yield
    for number, handler in zip(numbers, kept, strict=True):
        signal.signal(number, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)


@pytest.fixture(scope="session")
def bench_environment() -> dict[str, str]:
    """For bench processes that tests start: the package is found from anywhere, one thread, no GPU if there is one."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="session")
def _demo(
    tmp_path_factory: pytest.TempPathFactory, bench_environment: dict[str, str], bench_server: ForkServer
) -> tuple[Path, Path]:
    base = shared_folder(tmp_path_factory)
    model, data = base / "models" / "qlora-fleet--tiny", base / "data" / "chats.jsonl"
    words = ("-m", "bench", "demo", "--model", str(model), "--data", str(data))
    with (base / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever comes second finds both made, and verifies them
        with bench_server.start(*words, env=bench_environment, stdout=subprocess.DEVNULL) as process:
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
    """Its first chats, as many as tests need: every operator, trial and rank reads them all, and a long trial
    tokenizes them all. Beside the others, where pods see them. Shared as those."""
    few = demo_data.with_name("few.jsonl")
    with demo_data.open("rb") as lines:
        write_atomic(few, b"".join(itertools.islice(lines, 512)))
    return few


@pytest.fixture(scope="session")
def make_trial() -> Callable[..., Trial]:
    """A small valid trial with some fields changed. Its model and data are only names unless given."""

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
    """A real sshd on loopback, for whoever runs the tests, and a client configuration that may enter there."""
    with Sshd(tmp_path_factory.mktemp("sshd") / "server") as sshd:
        yield SshClient(tmp_path_factory.mktemp("client"), sshd)


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C reaches what tests start, also where pytest was started in the background of a script: what is ignored
    there is ignored by everything that comes of it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if workers := config.getoption("workers"):
        config.pluginmanager.register(Workers(config, workers, unit_of))


@pytest.fixture(scope="session")
def inv_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Runs `inv` where its start is not what is tested."""
    with _server(tmp_path_factory, "inv", INV) as server:
        yield server


@pytest.fixture(scope="session")
def bench_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Runs `python -m bench` where its start and its imports are not what is tested."""
    with _server(tmp_path_factory, "bench", BENCH) as server:
        yield server


@contextlib.contextmanager
def _server(factory: pytest.TempPathFactory, name: str, libraries: Sequence[str]) -> Iterator[ForkServer]:
    """One for all workers of a session: the first that needs it starts it, and it ends with pytest."""
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
            server.leave()
    yield server


@pytest.fixture
def measured(
    bench_server: ForkServer, bench_environment: dict[str, str], tmp_path: Path
) -> Callable[..., tuple[TrialResult, str]]:
    """Run a trial, which succeeds and has nothing to complain about: its result in `out`, and what it printed."""

    def run(trial: Trial, *before: str) -> tuple[TrialResult, str]:
        (tmp_path / "trial.json").write_text(trial.to_text())
        code = "\n".join((*before, "import runpy", "runpy.run_module('bench', run_name='__main__')"))
        words = ("-c", code, "run", "--trial", str(tmp_path / "trial.json"), "--out", str(tmp_path / "out"))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with bench_server.start(*words, env=bench_environment, **pipes) as process:
            said, complaint = process.communicate(timeout=240)
        assert (process.returncode, complaint) == (0, "")
        result = TrialResult.read(tmp_path / "out" / "result.json")
        assert (result.status, result.reason) == (TrialStatus.SUCCEEDED, None)
        return result, said

    return run


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalFleet]:
    """Hosts in folders of their own on this machine. Files that need another kind override this fixture."""
    with LocalFleet(tmp_path) as local:
        yield local


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A starter waits ten seconds for a slot, for slow machines; in tests that would only take time."""
    monkeypatch.setattr("remote.jobs.job.CLAIM_SEC", 0.1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; the test is skipped where we may not mount one."""
    with mounted(tmp_path / "small") as folder:
        yield folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: [item.nodeid.startswith(folder) for folder in FIRST].index(True))
    gc.enable()


def unit_of(nodeid: str) -> str:
    """A file's tests stay in one worker, because they share servers."""
    file = nodeid.partition("::")[0]
    if file in APART:
        return nodeid
    if file.startswith(OF_STACK):
        return STACK
    return SHARED if file.startswith(SHARED) and file not in OWN_MACHINES else file


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line for each reason to skip, and the command that installs what is missing."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
    if any(
        re.search(r"is not installed|apt-get install|cluster needs [a-z]|needs a C compiler", reason)
        for reason in reasons
    ):
        terminalreporter.line("`make system` installs the missing programs (as root, on Debian)")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="run the tests in so many processes")
    group = parser.getgroup(
        "cluster", "a real cluster instead of the tests' own (tests/support/kubernetes/real_cluster.py)"
    )
    group.addoption("--kubeconfig", help="run what any cluster can pass on the one of its current context")
    group.addoption(
        "--cluster-image", default="busybox:1.36", help="what its pods run, best one that `inv push` pushed"
    )
    group.addoption("--cluster-registry-user", help="who may pull it; the password: QLORA_FLEET_TEST_PASSWORD")
    group.addoption("--cluster-instance-type", default="VM.GPU.A10.1", help="the label of its GPU nodes")
    group.addoption("--cluster-volume", help='a volume all its nodes share, as in a PV: {"nfs": {"server": ...}}')
    group.addoption("--cluster-volume-here", help="where this machine has that volume's files")
    group.addoption("--cluster-faults", help="PROGRAM NAME JSON breaks it; nodes may be cordoned, tainted, stopped")


def pytest_report_header(config: pytest.Config) -> str:
    return f"cluster: {config.getoption('kubeconfig') or 'the one of the tests themselves'}"
