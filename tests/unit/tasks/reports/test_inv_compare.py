"""`inv compare`: its output, the file it writes, and its exit codes."""

import json
import re
from types import SimpleNamespace

import pytest
from invoke.context import Context

from reports.comparison.compare import ComparedRow
from tasks.commands import compare
from tasks.errors import RetryableError, TaskFailed, Undecided, UsageError
from tasks.reports.compare import undecided_reasons
from tests.support.faults import full_disk
from tests.support.reports import synthetic

HOSTILE = "[bold]=cmd|x[/]"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Create a project with three runs: `a`, `b` as fast as `a`, and a slower `c`."""
    bench = SimpleNamespace(day_effect_percent=1.0)
    settings = SimpleNamespace(root=tmp_path, results_folder=tmp_path / "results", bench=bench)
    monkeypatch.setattr("tasks.reports.compare.load", lambda _: settings)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for name, speeds in (("a", {}), ("b", {}), ("c", {"optimized": 0.3})):
        same = {"baseline": 0.16, "optimized": 0.155}
        synthetic.write_run(
            tmp_path / "results" / name, synthetic.record(run_id=name), speeds=same | speeds, exact=True
        )
    return settings


@pytest.mark.usefixtures("project")
def test_a_slower_run_fails_with_1_and_names_the_worst_and_programs_get_one_object(capsys):
    with pytest.raises(TaskFailed) as failed:
        compare(Context(), "a", "c", json=True)
    assert failed.value.exit_code == 1
    assert re.match(r"2 of 4 .* 1 %, most optimized: ", str(failed.value))
    output = capsys.readouterr()
    document = json.loads(output.out)
    assert (document["kind"], document["after"], document["exit_code"]) == ("comparison", ["c"], 1)
    assert "slower" in output.err


@pytest.mark.usefixtures("project")
def test_a_full_disk_is_a_retryable_error(monkeypatch):
    monkeypatch.setattr("tasks.reports.compare.write_atomic", full_disk)
    with pytest.raises(RetryableError, match=r"compare\.json: cannot be written: No space left on device; ") as ended:
        compare(Context(), "a", "b")
    assert ended.value.exit_code == 3


def test_the_other_runs_in_the_folder_show_the_effect_of_the_day(project):
    for name, speed in (("d", 0.16), ("e", 0.15), ("f", 0.165)):
        record = synthetic.record(run_id=name)
        speeds = {"baseline": 0.16, "optimized": speed}
        synthetic.write_run(project.root / "results" / name, record, speeds=speeds, exact=True)
    compare(Context(), "a", "b")
    rows = json.loads((project.root / "results/b/report/compare.json").read_text())["rows"]
    days = {row["configuration"]: row["day_percent"] for row in rows}
    assert days["baseline"] < 0.1  # five runs as fast as each other
    assert days["optimized"] > 50.0  # one of them, c, took twice the time


def test_an_uncollected_run_must_be_collected_before_differences_are_allowed(project):
    for result in (project.root / "results/a/trials").glob("*/result.json"):
        environment = {"kind": "environment", "packages": {"torch": "2.11.0"}}
        result.with_name("environment.json").write_text(json.dumps(environment))
    with pytest.raises(UsageError, match=r"a and b .*: lock differs; .*`inv collect --run=b`"):
        compare(Context(), "a", "b")


def test_incomparable_runs_exit_2_with_the_flag_that_allows_it(project, capsys):
    folder = project.root / "results" / "other"
    synthetic.write_run(folder, synthetic.record(run_id="other", profile="gpu"), exact=True)
    with pytest.raises(UsageError, match="`inv compare a other --allow=profile`"):
        compare(Context(), "a", "other")
    assert "! profile: a tiny, other gpu" in capsys.readouterr().out
    compare(Context(), "a", "other", allow=["profile"])
    assert "(allowed)" in capsys.readouterr().out


def test_undecided_comparisons_have_an_exit_code_of_their_own_unless_allowed(project, capsys):
    for name in ("one", "two"):
        synthetic.write_run(project.root / "results" / name, synthetic.record(run_id=name, workers=1), exact=True)
    with pytest.raises(Undecided, match=r"^2 of 4 .*; .*--allow=unknown"):
        compare(Context(), "one", "two")
    assert "unknown: baseline, optimized: a single process" in " ".join(capsys.readouterr().out.split())
    compare(Context(), "one", "two", allow=["unknown"])


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"allow": ["colour"]}, "--allow colour: expected one of profile, gpu, driver, lock"),
        ({"second": "a"}, "run a is named twice"),
        ({"second": "none"}, "run 'none'"),
        ({"out": "none/here.json"}, "none/here.json: cannot be written: No such file or directory; "),
    ],
)
def test_a_wrong_flag_is_one_line_and_exits_2(flags, expected):
    with pytest.raises(UsageError, match=re.escape(expected)):
        compare(Context(), **{"first": "a", "second": "b"} | flags)


def test_a_damaged_result_is_reported_and_a_damaged_plan_is_an_error(project, capsys):
    (project.root / "results/b/trials/baseline.worker-1/result.json").write_text("{}")
    compare(Context(), "a", "b", out=str(project.root / "here.json"))
    assert "! b: 1 file rejected; `inv report --run=b`" in " ".join(capsys.readouterr().out.split())
    assert json.loads((project.root / "here.json").read_text())["kind"] == "comparison"
    assert not (project.root / "results/b/report").exists()
    (project.root / "results/b/run.json").write_text("{")
    with pytest.raises(UsageError, match=r"results/b/run\.json: "):
        compare(Context(), "a", "b")


def test_long_names_that_look_like_markup_are_printed_literally_in_80_columns(project, capsys):
    trials = (synthetic.trial(HOSTILE), synthetic.trial("no-checkpointing-with-a-long-name", lora_rank=64))
    for name in ("x", "y"):
        synthetic.write_run(project.root / "results" / name, synthetic.record(trials, run_id=name), exact=True)
    compare(Context(), "x", "y")
    output = capsys.readouterr().out
    assert "[bold]" in output
    assert output.count(" same") == 4
    assert max(map(len, output.splitlines())) <= 80
    assert output.splitlines()[-1] == "results/y/report/compare.json"
    document = json.loads((project.root / "results/y/report/compare.json").read_text())
    assert (document["before"], document["after"], document["exit_code"], len(document["rows"])) == (["x"], ["y"], 0, 4)


def row(why, configuration="c", shows_percent=1.0):
    return ComparedRow(
        configuration=configuration, kind="training", metric="m", context={}, shows_percent=shows_percent, why=why
    )


def test_reasons_are_printed_once_with_the_configurations_and_the_largest_percentage():
    reasons = [
        f"too noisy to show a difference below {percent} %" for percent in ("3.4", "1.2e+02", "4.2e+21", "5", "6")
    ]
    rows = [row(why, f"c{index}", index) for index, why in enumerate(reasons)]
    assert undecided_reasons([*rows, row("a single process")]) == [
        "unknown: c0, c1, c2, c3 and 1 more: too noisy to show a difference below 6 %",
        "unknown: c: a single process",
    ]
