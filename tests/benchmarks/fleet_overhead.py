"""Overhead of the fleet for a trial: the same 60 s trial by hand and as a detached job, in turn."""

import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.records import Trial, suite
from bench.records.paths import LEDGER_FILE
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from remote.fleet.fetch_result import OUT_FOLDER, TRIAL_FILE
from remote.fleet.fleet import Fleet
from remote.fleet.ledger import Ledger
from remote.hosts.base import Host
from remote.hosts.command import Command
from remote.hosts.local import LocalHost
from tests.benchmarks import Figure, compare_with, demo_inputs, seconds
from tests.support.paths import ROOT
from tests.support.reports import synthetic

TRIAL_SEC = 60.0
PAIRS = 3
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        trial = _sixty_seconds(home)
        pairs = [(_through_fleet(home, trial, f"r{n}"), _by_hand(home, trial, f"h{n}")) for n in range(PAIRS)]
    return compare_with(pairs, "a trial through fleet and job", "the same trial by hand", of="by hand", goal="1.03 x")


def _sixty_seconds(folder: Path) -> Trial:
    """Make the optimized tiny trial on the demo's model, with enough steps to last a minute here."""
    short = dataclasses.replace(suite("quick", "tiny", *demo_inputs(folder))[1], measured_steps=20)
    overall = _by_hand(folder, short, "short")
    step = TrialResult.read(folder / "short" / "result.json").metrics
    if step is None:
        raise RuntimeError("the short trial measured nothing")
    more = round((TRIAL_SEC - overall) / step.step_time_sec.median)
    return dataclasses.replace(short, measured_steps=20 + max(0, more))


def _by_hand(folder: Path, trial: Trial, name: str) -> float:
    path = folder / f"{name}.json"
    path.write_text(trial.to_text())
    argv = (sys.executable, "-m", "bench", "run", "--trial", str(path), "--out", str(folder / name))
    environment = {**os.environ, **ONE_THREAD}
    return seconds(
        lambda: subprocess.run(argv, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=600)
    )


def _through_fleet(folder: Path, trial: Trial, run_id: str) -> float:
    def launch(host: Host, planned: PlannedTrial, attempt: int, job: str) -> Command:
        arguments = ("run", "--trial", f"{job}/{TRIAL_FILE}", "--out", f"{job}/{OUT_FOLDER}")
        labels = ("--trial-id", planned.trial_id, "--worker", host.name, "--attempt", str(attempt))
        return Command(
            argv=(*host.python, "-m", "bench", *arguments, *labels), environment=ONE_THREAD, folder=str(ROOT)
        )

    run = synthetic.record((trial,), run_id=run_id, workers=1, spread="shard")
    (planned,), (worker,) = run.planned, run.workers
    home = folder / run_id
    home.mkdir()

    def fleet() -> None:
        ledger = Ledger.create(home / LEDGER_FILE, [planned.trial_id])
        host = LocalHost(name=worker, workdir=str(folder / worker))
        Fleet(hosts=[host], run=run, run_folder=home, ledger=ledger, make_command=launch).run()

    taken = seconds(fleet)
    TrialResult.read(home / "trials" / planned.trial_id / "result.json")
    return taken
