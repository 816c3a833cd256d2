"""`inv compare` itself: what it prints, what it writes, and how it exits."""

import json
import re
from types import SimpleNamespace

import pytest
from invoke.context import Context

from reports.comparison.compare import ComparedRow, Comparison
from tasks.errors import RetryableError, TaskFailed, UsageError
from tasks.reports.commands import compare
from tasks.reports.compare import reasons, show
from tests.support.faults import full_disk
from tests.support.reports import synthetic

HOSTILE = "[bold]=cmd|x[/]"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with three runs: `a`, `b` as fast as it, and `c`, which is slower."""
    settings = SimpleNamespace(root=tmp_path, results_folder=tmp_path / "results")
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


def test_runs_as_fast_as_each_other_pass_and_the_table_fits_80_columns(project, capsys):
    compare(Context(), "a", "b")
    said = capsys.readouterr().out
    assert said.count(" same") == 4
    assert said.startswith("On average over all 2 configurations: 1.000 (1.000-1.000) times as fast, the")
    assert max(map(len, said.splitlines())) <= 80
    assert said.splitlines()[-1] == "results/b/report/compare.json"
    document = json.loads((project.root / "results/b/report/compare.json").read_text())
    assert (document["runs"], document["exit_code"], len(document["rows"])) == (["a", "b"], 0, 4)


@pytest.mark.usefixtures("project")
def test_programs_get_one_object_and_the_exit_code(capsys):
    with pytest.raises(TaskFailed):
        compare(Context(), "a", "c", json=True)
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["kind"], document["runs"], document["exit_code"]) == ("comparison", ["a", "c"], 1)
    assert "On average over all 2 configurations" in said.err


@pytest.mark.usefixtures("project")
def test_a_full_disk_is_no_wrong_usage_but_passes_as_in_inv_report(monkeypatch):
    monkeypatch.setattr("tasks.reports.compare.write_atomic", full_disk)
    with pytest.raises(RetryableError, match=r"compare\.json: cannot be written: No space left on device; ") as ended:
        compare(Context(), "a", "b")
    assert ended.value.exit_code == 3


@pytest.mark.usefixtures("project")
def test_a_slower_run_fails_with_1_and_names_the_worst(capsys):
    with pytest.raises(TaskFailed) as failed:
        compare(Context(), "a", "c")
    assert failed.value.exit_code == 1
    assert "3 of 5 comparisons are slower by more than 1 %, most optimized in c" in str(failed.value)
    assert "slower" in capsys.readouterr().out


@pytest.mark.usefixtures("project")
def test_a_tolerance_lets_it_pass():
    compare(Context(), "a", "c", tolerance="60")


@pytest.mark.usefixtures("project")
def test_several_runs_are_told_apart_by_name(capsys):
    with pytest.raises(TaskFailed):
        compare(Context(), "a", "b", also=["c"])
    said = capsys.readouterr().out
    assert said.count(") same") == 6
    assert said.splitlines()[-1] == "results/c/report/compare.json"
    assert max(map(len, said.splitlines())) <= 80


def test_a_run_that_was_not_collected_is_to_be_collected_before_anything_is_allowed(project):
    for result in (project.root / "results/a/trials").glob("*/result.json"):
        told = {"kind": "environment", "packages": {"torch": "2.11.0"}}
        result.with_name("environment.json").write_text(json.dumps(told))
    with pytest.raises(UsageError) as refused:
        compare(Context(), "a", "b")
    assert str(refused.value) == (
        "a and b cannot be compared: lock differs; type `inv collect --run=b` first: the environment of its trials has "
        "not been fetched"
    )


def test_unlike_runs_exit_2_with_the_flag_that_allows_it(project, capsys):
    folder = project.root / "results" / "other"
    synthetic.write_run(folder, synthetic.record(run_id="other", profile="gpu"), exact=True)
    with pytest.raises(UsageError, match="if that is what you mean: `inv compare a other --allow=profile`"):
        compare(Context(), "a", "other")
    assert "! profile: a tiny, other gpu" in capsys.readouterr().out
    compare(Context(), "a", "other", allow=["profile"])
    assert "(allowed)" in capsys.readouterr().out


def test_what_could_not_be_told_exits_2_unless_that_is_allowed(project, capsys):
    for name in ("one", "two"):
        synthetic.write_run(project.root / "results" / name, synthetic.record(run_id=name, workers=1), exact=True)
    with pytest.raises(UsageError, match=r"4 of 4 comparisons are undecided; measure on more workers"):
        compare(Context(), "one", "two")
    assert "unknown: baseline, optimized: a single process on a side" in " ".join(capsys.readouterr().out.split())
    compare(Context(), "one", "two", allow=["unknown"])


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"allow": ["colour"]}, "--allow colour: expected one of profile, gpu, driver, lock"),
        ({"tolerance": "much"}, "--tolerance: expected percent, from 0 to below 100, found 'much'"),
        ({"tolerance": "-1"}, "--tolerance: expected percent"),
        ({"tolerance": "nan"}, "--tolerance: expected percent"),
        ({"second": "a"}, "name each run once"),
        ({"second": "none"}, "run 'none' is not there"),
        ({"second": "../a"}, "expected a run's id, not a path"),
        (
            {"out": "none/here.json"},
            "none/here.json: cannot be written: No such file or directory; choose another place with --out",
        ),
    ],
)
def test_a_wrong_flag_is_one_line_and_exits_2(given, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        compare(Context(), **{"first": "a", "second": "b"} | given)


def test_a_plan_that_cannot_be_trusted_is_named(project):
    (project.root / "results/b/run.json").write_text("{")
    with pytest.raises(UsageError, match=r"results/b/run\.json: not complete JSON"):
        compare(Context(), "a", "b")


def test_a_damaged_result_is_said_and_the_others_are_compared(project, capsys):
    (project.root / "results/b/trials/baseline.worker-1/result.json").write_text("{}")
    compare(Context(), "a", "b")
    assert "! b: 1 file rejected; inv report --run=b says which and why" in " ".join(capsys.readouterr().out.split())


def test_the_place_of_the_json_can_be_chosen(project, tmp_path):
    compare(Context(), "a", "b", out=str(tmp_path / "here.json"))
    assert json.loads((tmp_path / "here.json").read_text())["kind"] == "comparison"
    assert not (project.root / "results/b/report").exists()


def test_names_that_look_like_markup_are_printed_as_they_are(project, capsys):
    trials = (synthetic.trial(HOSTILE), synthetic.trial("baseline", lora_rank=64))
    for name in ("x", "y"):
        synthetic.write_run(project.root / "results" / name, synthetic.record(trials, run_id=name), exact=True)
    compare(Context(), "x", "y")
    assert HOSTILE in capsys.readouterr().out


def made(**changed):
    """A row of a comparison; `changed` replaces fields."""
    given = {"configuration": "c", "kind": "training", "metric": "useful_tokens_per_sec", "context": "", "run_id": "b"}
    given |= {"family": "speed", "before": None, "after": None, "speed_ratio": 0.98, "low": 0.978, "high": 0.982}
    given |= {"p_value": 0.01, "p_corrected": 0.02, "shows_percent": 1.0, "verdict": "slower", "why": "w"}
    return ComparedRow(**(given | changed))


def test_reasons_are_told_once_with_the_configurations_and_the_largest_percentage():
    whys = [f"too noisy to show a difference below {percent} %" for percent in ("3.4", "1.2e+02", "4.2e+21", "5", "6")]
    rows = [made(configuration=f"c{place}", why=why, shows_percent=place) for place, why in enumerate(whys)]
    assert reasons([*rows, made(why="a single process")]) == [
        "unknown: c0, c1, c2, c3 and 1 more: too noisy to show a difference below 6 %",
        "unknown: c: a single process",
    ]


def shown(capsys, *rows, over_all=()):
    show(
        Comparison(
            run_ids=("a", "b"), rows=rows, over_all=over_all, unlike=(), refused=(), allowed=(), only_in={},
            rejected={}, half_known=(), tolerance=0.01,
        )
    )  # fmt: skip
    return capsys.readouterr().out


def test_all_configurations_slower_alike_is_one_line_and_what_would_tell_a_shifted_run(capsys):
    said = " ".join(
        shown(capsys, made(), made(configuration="d"), over_all=[made(configuration="all 2 configurations")]).split()
    )
    assert said.startswith("On average over all 2 configurations: 2.0 % slower (1.8 to 2.2 %). A run may be shifted")
    assert "What would tell: repeat a as it was, and compare it with its repeat." in said


def test_one_slower_configuration_among_others_is_no_shifted_run(capsys):
    rows = [made(), made(configuration="d", speed_ratio=1.001, verdict="same")]
    assert "shifted" not in shown(capsys, *rows, over_all=[made(configuration="all 2 configurations")])


def test_parts_of_a_step_that_did_not_differ_fill_no_table(capsys):
    part = made(metric="step_forward_sec", context='{"clock": "device"}', family="parts of a step", verdict="unknown")
    said = shown(capsys, made(), part)
    assert "step forward" not in said
    assert "1 more measurements were not shown to differ" in said


def test_energy_is_less_or_more_not_faster_or_slower(capsys):
    said = shown(capsys, made(metric="joules_per_1000_useful_tokens", family="energy"))
    assert "more" in said
    assert "slower" not in said


@pytest.mark.usefixtures("project")
def test_long_names_are_broken_between_words(capsys):
    said = shown(capsys, made(configuration="no-checkpointing-with-a-long-name", metric="global_samples_per_sec"))
    assert "no-checkpointing-\n" in "\n".join(line[:18].strip() for line in said.splitlines()) + "\n"
    assert max(map(len, said.splitlines())) <= 80
