"""Fixtures for system tests: a copy of the project per test, in a folder whose name has spaces and quotes.

`inv`, the fleet, the detached jobs and the trials are all real; only sizes are small. Not covered: hosts other than
this machine.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.records.result import TrialResult
from tests.support import forked
from tests.support.forked import ForkServer
from tests.support.hosts.fake_worker_training import install_fake_training
from tests.support.machines.build_vm import BuildVm, running_build_vm
from tests.support.machines.network import Network, running_network
from tests.support.paths import ROOT

WAIT_SEC = 300.0


class Project:
    """A copy of the project in which `inv` runs."""

    def __init__(self, folder: Path, server: ForkServer) -> None:
        self.folder, self.server = folder, server
        self.options: tuple[str, ...] = ()  # prepended to the arguments of every `inv`
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("INVOKE_")},
            "HOME": str(folder),  # without the user's ~/.invoke.yaml
            "INVOKE_FLEET_SIZE": "2",
            "INVOKE_BENCH_WARMUP_STEPS": "1",
            "INVOKE_BENCH_MEASURED_STEPS": "3",
        }
        self._started: list[subprocess.Popen[str]] = []

    def inv(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `inv ...` and assert its exit code."""
        environment = {**self.environment, **environment}
        done = self.server.inv(*self.options, *arguments, cwd=self.folder, env=environment, timeout_sec=WAIT_SEC)
        assert done.returncode == code, f"inv {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def inv_error(self, *arguments: str, code: int = 2, **environment: str) -> str:
        """Run `inv ...`, assert this exit code and one line on standard error, and return that line.

        Unless the exit code is 3, standard output may contain only `cluster: ...` lines.
        """
        done = self.inv(*arguments, code=code, **environment)
        assert code == 3 or all(line.startswith("cluster: ") for line in done.stdout.splitlines()), done.stdout
        (line,) = done.stderr.splitlines()
        return line

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start `inv ...` without waiting for it."""
        environment = {**self.environment, **environment}
        process = self.server.start_inv(*self.options, *arguments, cwd=self.folder, env=environment)
        self._started.append(process)
        return process

    def wait_for_exit(
        self, process: subprocess.Popen[str], *, code: int = 0, timeout_sec: float = 60.0
    ) -> tuple[str, str]:
        """Wait for a started process, assert its exit code, and return its output and errors."""
        out, err = process.communicate(timeout=timeout_sec)
        assert process.returncode == code, out + err
        return out, err

    def interrupt(self, process: subprocess.Popen[str], *, timeout_sec: float = 60.0) -> str:
        """Send SIGINT, wait for exit code 130, and return the standard error."""
        process.send_signal(signal.SIGINT)
        return self.wait_for_exit(process, code=130, timeout_sec=timeout_sec)[1]

    def kill(self, process: subprocess.Popen[str]) -> str:
        """Kill a process group and return what it has written to standard output."""
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate(timeout=60)[0]

    def kill_trainers(self) -> None:
        # The first one's end may end the others before their turn: `kill` goes on, and fails.
        subprocess.run(["kill", "-KILL", *map(str, self.trainers())], capture_output=True, check=False)

    def run_folder(self) -> Path:
        return (self.folder / "results" / "latest").resolve()

    def ledger(self) -> list[dict[str, Any]]:
        """Return the newest run's ledger, complete lines only."""
        path = self.folder / "results" / "latest" / "ledger.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.ledger() if event["event"] == kind]

    def statuses(self) -> dict[str, str]:
        """Return each trial's final status in the newest run; assert that each trial ended exactly once."""
        ended = self.events("ended")
        assert sorted(event["trial_id"] for event in ended) == sorted(
            event["trial_id"] for event in self.events("planned")
        )
        return {event["trial_id"]: event["end"] for event in ended}

    def results(self) -> dict[str, TrialResult]:
        """Return the collected results of the newest run by trial folder."""
        paths = sorted(self.run_folder().glob("trials/*/result.json"))
        return {path.parent.name: TrialResult.read(path) for path in paths}

    def progress(self) -> list[dict[str, Any]]:
        """Return the progress records of the running trials."""
        return [
            json.loads(path.read_text())
            for pattern in ("out/progress.json", "progress.json")  # a trial's; that of a training's attempt
            for path in self.folder.glob(f".workers/*/runs/*/*/{pattern}")
            if not (path.parents[1] / "end.json").exists()
        ]

    def wait_until(self, holds: Callable[[], Any], description: str) -> Any:
        deadline = time.monotonic() + WAIT_SEC
        while time.monotonic() < deadline:
            value = holds()
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"waited {WAIT_SEC:.0f} s for {description}")

    def processes(self) -> dict[int, list[str]]:
        """Return the live processes of this project's workers: pid to argv."""
        processes = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z" and any(str(self.folder / ".workers") in word for word in argv):
                processes[int(entry.name)] = argv
        return processes

    def trainers(self) -> dict[int, list[str]]:
        return {pid: argv for pid, argv in self.processes().items() if "bench" in argv and "run" in argv}

    def clean_up(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=10)

        def all_gone() -> bool:
            left = self.processes()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        self.wait_until(all_gone, "its workers' processes to die")


@contextlib.contextmanager
def project_copy(
    parent: Path, server: ForkServer, name: str = """it's a "fleet" of mine""", sources: Path | None = None
) -> Iterator[Project]:
    """Create a copy of this project in `parent`; afterwards kill its workers' processes.

    With `sources`, a folder of the same file system, its files are hard links to those there.
    """
    folder = parent / name
    folder.mkdir()
    for name in ("bench", "tasks"):
        copy_function = os.link if sources else shutil.copy2
        shutil.copytree((sources or ROOT) / name, folder / name, copy_function=copy_function)  # with compiled files
    for name in ("remote", "reports"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("tasks.py", "invoke.yaml"):
        shutil.copy(ROOT / name, folder / name)
    project = Project(folder, server)
    yield project
    project.clean_up()


@pytest.fixture
def bare_project(tmp_path: Path, inv_server: ForkServer, sources: Path) -> Iterator[Project]:
    """A project without a model, which takes many seconds to create."""
    with project_copy(tmp_path, inv_server, sources=sources) as project:
        yield project


@pytest.fixture
def project(bare_project: Project, tiny_model: Path, tiny_data: Path) -> Project:
    bare_project.environment |= {"INVOKE_MODEL_PATH": str(tiny_model), "INVOKE_DATA_PATH": str(tiny_data)}
    return bare_project


@pytest.fixture
def hold_file(project: Project) -> Path:
    """File that pauses every training in its next step while it exists.

    The project's trainings compute nothing (tests/support/hosts/fake_worker_training.py).
    """
    return install_fake_training(project.folder)


@pytest.fixture
def forked_trials(project: Project, bench_server: ForkServer) -> None:
    """Fork the project's trials from a server (tests/support/forked.py); only their start is not real."""
    forked.install_forked_bench(project.folder, bench_server)


@pytest.fixture(scope="module")
def module_network() -> Iterator[Network]:
    """Laptop, build VM and bastion, shared by a test file: see tests/support/machines/network.py.

    A test that cuts a cable must repair it.
    """
    with running_network() as machines:
        yield machines


@pytest.fixture(scope="session")
def session_build_vm() -> Iterator[BuildVm]:
    """A build VM with engine and registry, and a project on the laptop: see tests/support/machines/build_vm.py.

    Created once per session, because an engine takes seconds to start.
    """
    with running_build_vm() as build_vm:
        yield build_vm


@pytest.fixture
def build_vm(session_build_vm: BuildVm) -> BuildVm:
    """The session's build VM in its initial state: passwords, groups, engine, registry and cable."""
    session_build_vm.reset()
    return session_build_vm


@pytest.fixture
def built_vm(build_vm: BuildVm) -> BuildVm:
    """The build VM with the project's current image."""
    build_vm.inv("build")
    return build_vm
