"""Tests that what earlier versions wrote is still read: settings and runs that they recorded (tests/support/versions).

Their commits wrote the files, over one worker on a CPU; comments and line breaks were removed, and the
folder in the ledgers was changed.
"""

import json
from pathlib import Path

import pytest
import yaml
from invoke.parser import Parser

import tasks
from bench.records.result import TrialResult
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from bench.records.version import VERSION
from remote.fleet.ledger import Ledger
from reports.read.load import load
from reports.summary.summarize import summarize
from reports.training import summary as training_summary
from tasks.cli.flags import RENAMED_FLAGS
from tasks.settings.load import RENAMED, translate_recorded
from tasks.settings.sources import SettingsLayer
from tests.support.project_copy import Inv

VERSIONS = Path(__file__).parents[2] / "support" / "versions"
RUNS = sorted(path.parent for path in VERSIONS.glob("*/*/run.json"))


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(VERSIONS).parts[0] for path in paths]


SETTINGS = sorted(VERSIONS.glob("*/invoke.yaml"))


@pytest.mark.parametrize("path", SETTINGS, ids=names(SETTINGS))
def test_settings_are_read_and_each_old_name_is_named(path: Path, inv: Inv) -> None:
    done = inv("-f", str(path), "settings", "fleet.local.threads")
    assert (done.returncode, "invoke.yaml" in done.stdout) == (0, True)
    layer = SettingsLayer(data=yaml.safe_load(path.read_text()))
    old = {keys: new for keys, new in RENAMED.items() if layer.get(keys) is not None}
    lines = [line.partition(": ")[2] for line in done.stderr.splitlines()]
    assert sorted(lines) == sorted(
        f"{'.'.join(keys)} is now {'.'.join(new)}; rename it there" for keys, new in old.items()
    )


@pytest.mark.parametrize("folder", RUNS, ids=names(RUNS))
def test_plans_ledgers_and_results_are_read(folder: Path) -> None:
    plan = RunRecord.read(folder / "run.json")
    entries = Ledger(folder / "ledger.jsonl").entries
    assert {name: entry.status for name, entry in entries.items()} == {
        trial.trial_id: TrialStatus.SUCCEEDED for trial in plan.planned
    }
    for trial in plan.planned:
        assert TrialResult.read(folder / "trials" / trial.trial_id / "result.json").status is TrialStatus.SUCCEEDED
    assert translate_recorded(plan.settings)["fleet"]["size"] == 1


@pytest.mark.parametrize("folder", RUNS, ids=names(RUNS))
def test_runs_are_reported(folder: Path) -> None:
    if RunRecord.read(folder / "run.json").suite == "train":
        report = training_summary.read(folder)
        assert (report.record.steps_done, report.rejected) == (6, ())
        assert training_summary.headline(report)
    else:
        summary = summarize(load(folder))
        assert (summary.counts[TrialStatus.SUCCEEDED], list(summary.rejected)) == (2, [])
        assert summary.rows[0].label == "baseline"


@pytest.mark.parametrize("folder", RUNS, ids=names(RUNS))
def test_a_record_names_the_version_that_wrote_it(folder: Path, tmp_path: Path) -> None:
    plan = RunRecord.read(folder / "run.json")
    assert "version" not in json.loads((folder / "run.json").read_text())
    assert json.loads(plan.write(tmp_path).read_text())["version"] == VERSION
    assert RunRecord.read(tmp_path / "run.json") == plan
    Ledger.create(tmp_path / "ledger.jsonl", ["a"])
    assert json.loads((tmp_path / "ledger.jsonl").read_text())["version"] == VERSION


FLAGS = sorted(VERSIONS.glob("*/flags.yaml"))


@pytest.mark.parametrize("path", FLAGS, ids=names(FLAGS))
def test_every_task_and_flag_is_accepted(path: Path) -> None:
    contexts = Parser(contexts=tasks.ns.to_contexts()).contexts
    for task, flags in yaml.safe_load(path.read_text()).items():
        unknown = [flag for flag in flags if flag not in contexts[task].flags | RENAMED_FLAGS.get(task, {})]
        assert unknown == [], task
