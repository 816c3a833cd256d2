"""Fixtures for all tests: the demo's model and data, trials, hosts, and servers that fork programs."""

import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import subprocess
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
