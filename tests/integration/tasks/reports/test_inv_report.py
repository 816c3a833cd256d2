"""`inv report`: its output and its exit codes."""

import re
from types import SimpleNamespace

import pytest
from invoke.context import Context

from bench.records.paths import LEDGER_FILE
from bench.records.status import TrialStatus
from remote.cluster.settings import ClusterSection
from remote.fleet.ledger import Ledger
from remote.image.settings import RegistrySection
from reports.figures.run_comparison import RUN_COMPARISON
from reports.output import write_report
from tasks.commands import report
from tasks.errors import SomeTrialsFailed, UsageError
from tasks.settings.sections import CostSection
from tests.support.reports import synthetic


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Create a project's folder with one run in results/, which is also the latest."""
    settings = SimpleNamespace(
        root=tmp_path,
        results_folder=tmp_path / "results",
        cost=CostSection(),
        cluster=ClusterSection(),
        registry=RegistrySection(),
    )
    monkeypatch.setattr("tasks.reports.report.load", lambda _: settings)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(write_report, "CHARTS", (RUN_COMPARISON,))  # drawing the others would take seconds
    synthetic.write_run(tmp_path / "results" / synthetic.RUN_ID)
    (tmp_path / "results" / "latest").symlink_to(synthetic.RUN_ID)
    return settings


def test_it_prints_the_recommendation_the_table_in_80_columns_with_literal_names_the_note_and_the_path(project, capsys):
    project.cost = CostSection(price_usd_per_gpu_hour=2.0, price_source="a list")
    names = ("baseline", "[red]x[/red]", "x" * 80)
    trials = tuple(synthetic.trial(name, lora_rank=rank) for rank, name in enumerate(names, start=1))
    synthetic.write_run(project.results_folder / "long", synthetic.record(trials, run_id="long"))
    report(Context(), run="long")
    output = capsys.readouterr().out
    assert output.startswith("Stay with baseline: ")
    assert max(map(len, output.splitlines())) <= 80
    assert "US$" in output
    assert "[red]x[/red]" in output
    assert "say nothing about an A10" in " ".join(output.split())
    assert output.splitlines()[-1] == "results/long/report/index.html"


def test_a_run_with_a_failed_trial_is_reported_and_then_fails(project, capsys):
    folder = project.results_folder / synthetic.RUN_ID
    plan = synthetic.record().planned[0]
    synthetic.write_result(folder, synthetic.result(plan, status=TrialStatus.TIMED_OUT, reason="300 s have passed"))
    with pytest.raises(SomeTrialsFailed, match=r"7 of 8 .*\(1 TIMED_OUT\); "):
        report(Context())
    assert (folder / "report" / "index.html").is_file()
    assert "index.html" in capsys.readouterr().out


def test_a_run_with_open_trials_names_the_command_that_resumes_it(project):
    folder = project.results_folder / "open"
    folder.mkdir()
    run = synthetic.record(run_id="20270101-000000-quick")
    run.write(folder)
    Ledger.create(folder / LEDGER_FILE, [plan.trial_id for plan in run.planned])
    with pytest.raises(SomeTrialsFailed) as raised:
        report(Context(), run="open")
    assert f"`inv bench --resume={run.run_id}`" in raised.value.remedy


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"run": "nope"}, synthetic.RUN_ID),  # the message lists the existing runs
        ({"run": "damaged"}, r"damaged/run\.json"),
        ({"format": ["excel"]}, r"--format excel: expected one of tensorboard, wandb"),
    ],
)
def test_a_run_that_cannot_be_reported_is_a_usage_error_with_the_reason(project, flags, expected):
    (project.results_folder / "damaged").mkdir()
    (project.results_folder / "damaged" / "run.json").write_text("{")
    with pytest.raises(UsageError, match=expected):
        report(Context(), **flags)


def test_a_differing_condition_is_allowed_by_name_and_named_on_the_page(project, capsys):
    other = synthetic.record(run_id="other", profile="gpu")
    synthetic.write_run(project.results_folder / "other", other)
    with pytest.raises(UsageError) as refused:
        report(Context(), against="other")
    (command,) = re.findall(r"`inv (report [^`]+)`", str(refused.value))
    assert command == f"report --run={synthetic.RUN_ID} --against=other --allow=profile"
    report(Context(), against="other", allow=["profile"])
    page = (project.root / capsys.readouterr().out.splitlines()[-1]).read_text()
    assert 'id="12_run_comparison"' in page
    assert "profile: other gpu" in page
