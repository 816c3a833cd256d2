"""`inv train`, `--resume`, `cancel` and `collect` on this machine's workers, with data files that are replaced.

Everything is real except the steps (tests/support/hosts/fake_worker_finetune.py), which record the data that they were
given. Not covered: ranks, pods, real steps.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.records.paths import LEDGER_FILE, RUN_FILE
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from bench.records.training import Training
from remote.fleet.ledger import Ledger
from tests.chaos.scenario import CommandResult, FaultThread
from tests.support.forked import INV_LIBRARIES, ForkServer
from tests.support.hosts.fake_worker_finetune import ADAPTER, INPUTS_LOG, install_fake_finetune
from tests.support.paths import ROOT
from tests.system.conftest import Project, project_copy

STEPS = 60


class TrainingTarget:
    """A project whose training data other programs replace. Use `running`."""

    def __init__(self, folder: Path, project: Project, data: Path) -> None:
        self.folder, self.project, self.data = folder, project, data
        lines = data.read_bytes().splitlines(keepends=True)
        versions = (b"".join(lines), b"".join(lines[1:]), b"".join(reversed(lines)))
        self.versions = {hashlib.sha256(version).hexdigest(): version for version in versions}
        self._planned: dict[str, str] = {}  # the data's sha256 by run

    def next_command(self, chooser: random.Random) -> tuple[str, ...]:
        self.data.write_bytes(chooser.choice(list(self.versions.values())) if chooser.random() < 0.3 else self.original)
        runs = self._runs()
        has_work = bool(runs) and self._status(runs[-1]) is not TrialStatus.SUCCEEDED
        if not runs or chooser.random() < (0.2 if has_work else 0.7):
            return ("train",)
        return chooser.choice([("train", "--resume")] * 6 + [("cancel",), ("collect",)])

    @property
    def original(self) -> bytes:
        return next(iter(self.versions.values()))

    def start(self, command: Sequence[str], out: Path, err: Path) -> subprocess.Popen[str]:
        with out.open("w") as to, err.open("w") as complaints:
            return self.project.server.start_inv(
                *self.project.options,
                *command,
                cwd=self.project.folder,
                env=self.project.environment,
                stdout=to,
                stderr=complaints,
            )

    @contextlib.contextmanager
    def injecting_faults(self, chooser: random.Random) -> Iterator[Callable[[], str]]:
        with _FaultInjector(self, random.Random(chooser.randrange(10**9)), count=chooser.randrange(5)) as injector:
            yield injector.describe

    def check(self, done: CommandResult) -> None:
        for run in self._runs():
            self._check_run(run)
        if done.code == 0 and done.command[0] == "train":
            name = next((word.partition("=")[2] for word in done.command if word.startswith("--resume=")), "latest")
            status = self._status((self.project.folder / "results" / name).resolve())
            assert status is TrialStatus.SUCCEEDED, f"exit 0 of a training that is {status}"

    def finish(self, at_last: Callable[..., CommandResult]) -> None:
        if not self._runs():  # nothing began in a project that cannot train at all
            self.data.write_bytes(self.original)
            at_last("train")
        for run in self._runs():
            self.data.write_bytes(self.versions[self._planned[run.name]])
            if self._status(run) is not TrialStatus.SUCCEEDED:
                at_last("train", f"--resume={run.name}")
            assert self._status(run) is TrialStatus.SUCCEEDED, f"{run.name}: {self._status(run)}"
            at_last("collect", f"--run={run.name}")
            adapter = (run / "adapter" / ADAPTER).read_text()
            assert adapter == f"{STEPS * (STEPS + 1) // 2}\n", f"{run.name}: a step is missing or was repeated"
        assert not self.project.trainers(), "a training is left running"

    def _check_run(self, run: Path) -> None:
        """Check that every attempt was given the planned data."""
        training = RunRecord.read(run / RUN_FILE).planned[0].trial.training
        assert isinstance(training, Training)
        planned = training.input_digests[str(self.data)]
        assert self._planned.setdefault(run.name, planned) == planned, "the plan was changed"
        expected = hashlib.sha256(planned.encode()).hexdigest()
        for log in self.project.folder.glob(f".workers/*/runs/{run.name}/**/{INPUTS_LOG}"):
            assert set(log.read_text().split()) == {expected}, f"{run.name} trained on other data than planned"

    def _runs(self) -> list[Path]:
        paths = self.project.folder.glob(f"results/*-train/{LEDGER_FILE}")
        return sorted({path.parent for path in paths if (path.parent / RUN_FILE).exists()})

    @staticmethod
    def _status(run: Path) -> TrialStatus | None:
        (entry,) = Ledger(run / LEDGER_FILE).entries.values()
        return entry.status


class _FaultInjector(FaultThread):
    pause_sec = (0.3, 3.0)

    def __init__(self, target: TrainingTarget, rng: random.Random, count: int) -> None:
        super().__init__(rng, count)
        self._target = target

    def faults_to_inject(self) -> list[Callable[[], None]]:
        files = [*[self._replace] * 3, self._truncate, self._remove, self._restore]
        return [*files, *[self._kill] * 3, self._terminate]

    def _replace(self) -> None:
        """Replace the data by another file, or write other data into it."""
        content = self.rng.choice(list(self._target.versions.values()))
        path = self._target.data
        if self.rng.random() < 0.5:
            path = path.with_name("other.jsonl")
        path.write_bytes(content)
        path.rename(self._target.data)

    def _truncate(self) -> None:
        self._target.data.write_bytes(self._target.original[: self.rng.randrange(len(self._target.original))])

    def _remove(self) -> None:
        self._target.data.unlink(missing_ok=True)

    def _restore(self) -> None:
        self._target.data.write_bytes(self._target.original)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """Signal a process of a training: the trial or its supervisor."""
        pids = sorted(self._target.project.trainers())
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(pids), number)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[TrainingTarget]:
    """Create the project, its model and its data for the block."""
    model, chats = folder / "models" / "qlora-fleet--tiny", folder / "chats.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    demo = (sys.executable, "-m", "bench", "demo", "--model", str(model), "--data", str(chats))
    subprocess.run(demo, env=environment, check=True, stdout=subprocess.DEVNULL)
    with ForkServer(folder, INV_LIBRARIES) as server, project_copy(folder, server) as project:
        data = project.folder / "mine.jsonl"
        data.write_bytes(b"".join(chats.read_bytes().splitlines(keepends=True)[:512]))
        settings = {
            "train": {"data": [str(data)], "max_steps": STEPS, "max_seq_len": 256, "max_restarts": 20},
            "fleet": {"size": 1},
        }
        (project.folder / "walk.json").write_text(json.dumps(settings))
        project.options = ("-f", "walk.json")
        project.environment |= {"INVOKE_MODEL_PATH": str(model), "INVOKE_DATA_PATH": str(chats)}
        install_fake_finetune(project.folder)
        yield TrainingTarget(folder, project, data)
