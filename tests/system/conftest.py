"""A project of its own for every test: a copy of this one in a folder whose name has spaces and quotes.

`inv`, the fleet, the detached jobs and the trials are all real; only sizes are small. What these tests do not cover
is any host but this machine.
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
from tests.support.hosts.fake_worker_training import put_into
from tests.support.machines.build_vm import BuildVm, running_build_vm
from tests.support.machines.network import Network, running_network
from tests.support.paths import ROOT

WAIT_SEC = 300.0


class Project:
    """A folder in which `inv` can be typed."""

    def __init__(self, folder: Path, server: ForkServer) -> None:
        self.folder, self.server = folder, server
        self.options: tuple[str, ...] = ()  # of every `inv`
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("INVOKE_")},
            "HOME": str(folder),  # no ~/.invoke.yaml of whoever runs the tests
            "INVOKE_FLEET_SIZE": "2",
            "INVOKE_BENCH_WARMUP_STEPS": "1",
            "INVOKE_BENCH_MEASURED_STEPS": "3",
        }
        self._started: list[subprocess.Popen[str]] = []

    def inv(self, *words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Type `inv ...` and wait for it; asserts its exit code."""
        environment = {**self.environment, **environment}
        done = self.server.inv(*self.options, *words, cwd=self.folder, env=environment, timeout_sec=WAIT_SEC)
        assert done.returncode == code, f"inv {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def refused(self, *words: str, code: int = 2, **environment: str) -> str:
        """Type what is refused with this exit code and one line on standard error, which is returned. Standard output
        says which cluster was asked, if one was, and no more unless something had begun, as before exit 3."""
        done = self.inv(*words, code=code, **environment)
        assert code == 3 or all(line.startswith("cluster: ") for line in done.stdout.splitlines()), done.stdout
        (line,) = done.stderr.splitlines()
        return line

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Type `inv ...` and do not wait."""
        environment = {**self.environment, **environment}
        process = self.server.start_inv(*self.options, *words, cwd=self.folder, env=environment)
        self._started.append(process)
        return process

    def ended(self, process: subprocess.Popen[str], *, code: int = 0, within_sec: float = 60.0) -> tuple[str, str]:
        """Wait for what was started; asserts its exit code. What it said on both streams."""
        out, err = process.communicate(timeout=within_sec)
        assert process.returncode == code, out + err
        return out, err

    def interrupt(self, process: subprocess.Popen[str], *, within_sec: float = 60.0) -> str:
        """Ctrl-C; what it said on standard error."""
        process.send_signal(signal.SIGINT)
        return self.ended(process, code=130, within_sec=within_sec)[1]

    def kill(self, process: subprocess.Popen[str]) -> str:
        """Kill what was started, with its process group; what it had said on standard output."""
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate(timeout=60)[0]

    def kill_trainers(self) -> None:
        for pid in self.trainers():
            os.kill(pid, signal.SIGKILL)

    def run_folder(self) -> Path:
        return (self.folder / "results" / "latest").resolve()

    def ledger(self) -> list[dict[str, Any]]:
        """The newest run's ledger, whole lines only."""
        path = self.folder / "results" / "latest" / "ledger.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.ledger() if event["event"] == kind]

    def ends(self) -> dict[str, str]:
        """How each trial of the newest run ended; asserts that each has exactly one end."""
        ended = self.events("ended")
        assert sorted(event["trial_id"] for event in ended) == sorted(
            event["trial_id"] for event in self.events("planned")
        )
        return {event["trial_id"]: event["end"] for event in ended}

    def results(self) -> dict[str, TrialResult]:
        """What came home of the newest run, by the names of the trials' folders."""
        paths = sorted(self.run_folder().glob("trials/*/result.json"))
        return {path.parent.name: TrialResult.read(path) for path in paths}

    def progress(self) -> list[dict[str, Any]]:
        """What the trials now say of themselves."""
        return [
            json.loads(path.read_text())
            for path in self.folder.glob(".workers/*/runs/*/*/out/progress.json")
            if not (path.parents[1] / "end.json").exists()
        ]

    def wait_until(self, holds: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + WAIT_SEC
        while time.monotonic() < deadline:
            found = holds()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"waited {WAIT_SEC:.0f} s for {what}")

    def processes(self) -> dict[int, list[str]]:
        """Every live process that belongs to this project's workers: pid to argv."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z" and any(str(self.folder / ".workers") in word for word in words):
                found[int(entry.name)] = words
        return found

    def trainers(self) -> dict[int, list[str]]:
        return {pid: words for pid, words in self.processes().items() if "bench" in words and "run" in words}

    def clear_away(self) -> None:
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
def made_project(place: Path, server: ForkServer, name: str = """it's a "fleet" of mine""") -> Iterator[Project]:
    """A copy of this project in `place`, of whose workers nothing is left afterwards."""
    folder = place / name
    folder.mkdir()
    for name in ("bench", "tasks"):
        shutil.copytree(ROOT / name, folder / name)  # with what is compiled
    for name in ("remote", "reports"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("tasks.py", "invoke.yaml"):
        shutil.copy(ROOT / name, folder / name)
    made = Project(folder, server)
    yield made
    made.clear_away()


@pytest.fixture
def bare_project(tmp_path: Path, inv_server: ForkServer) -> Iterator[Project]:
    """A project without a model, which takes many seconds to make."""
    with made_project(tmp_path, inv_server) as made:
        yield made


@pytest.fixture
def project(bare_project: Project, tiny_model: Path, tiny_data: Path) -> Project:
    bare_project.environment |= {"INVOKE_MODEL_PATH": str(tiny_model), "INVOKE_DATA_PATH": str(tiny_data)}
    return bare_project


@pytest.fixture
def hold(project: Project) -> Path:
    """The project's trainings compute nothing (tests/support/hosts/fake_worker_training.py), and each stays in its next
    step while this file is there."""
    return put_into(project.folder)


@pytest.fixture
def forked_trials(project: Project, bench_server: ForkServer) -> None:
    """The project's trials are real, but for their start: see tests/support/forked.py."""
    forked.put_into(project.folder, bench_server)


@pytest.fixture(scope="module")
def network_of_module() -> Iterator[Network]:
    """Laptop, build VM and bastion, made once for a file of tests: see tests/support/machines/network.py for what they
    are and can do. Whoever cuts a cable mends it."""
    with running_network() as machines:
        yield machines


@pytest.fixture(scope="session")
def build_vm_of_session() -> Iterator[BuildVm]:
    """A build VM with engine and registry, and a project on the laptop: see tests/support/machines/build_vm.py. Made
    once, because an engine takes seconds to start."""
    with running_build_vm() as found:
        yield found


@pytest.fixture
def build_vm(build_vm_of_session: BuildVm) -> BuildVm:
    """The same, as a test may expect it: passwords, groups, engine, registry and cable as they were made."""
    build_vm_of_session.begin_anew()
    return build_vm_of_session


@pytest.fixture
def built(build_vm: BuildVm) -> BuildVm:
    """The same, with the image of the project as it is now."""
    build_vm.inv("build")
    return build_vm
