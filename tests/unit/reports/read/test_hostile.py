"""Hostile folders: every such file is rejected by name, and the rest is reported."""

import os
import shutil

import pytest

from reports.read.loaded_run import ReportError
from reports.read.run_folder import load
from reports.summary.prices import PriceError, Pricing
from reports.summary.summarize import summarize
from tests.support.reports import hostile, synthetic

CASES = dict(hostile.named_cases())


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "run"
    hostile.write(folder)
    return folder


@pytest.fixture
def folder(good, tmp_path):
    """A copy of the good folder."""
    return shutil.copytree(good, tmp_path / "run")


def test_a_plan_without_trials_is_refused(folder):
    hostile.rewrite_checksummed(folder / "run.json", lambda document: hostile.set_value(document, ("planned",), []))
    with pytest.raises(ReportError, match=r"run\.json: [^\n]* no trial"):
        load(folder)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", CASES)
def test_a_hostile_file_is_rejected_by_name_and_the_rest_is_reported(folder, case):
    CASES[case](folder)
    if case.startswith("run.json"):
        with pytest.raises(ReportError, match=r"^[^\n]*run\.json: [^\n]*$"):
            load(folder)
        return
    run = load(folder)
    summary = summarize(run)
    assert len(run.results) + len(run.missing) == len(run.record.planned)
    assert len(summary.measured_rows) >= 1
    files = [rejected.file for rejected in run.rejected]
    is_lenient = case.startswith("ledger")  # its invalid lines are skipped, and the rest is read
    assert len(files) == 1 or (is_lenient and not files)
    assert all(case.startswith((name, "(")) for name in files)


def test_a_folder_name_that_is_not_utf8_is_shown_with_escapes(folder):
    os.mkdir(os.fsencode(folder / "trials") + b"/caf\xe9")
    (rejected,) = load(folder).rejected
    assert rejected.file.encode() == b"trials/caf\\xe9"


def test_a_trial_that_the_plan_names_twice_is_refused(tmp_path):
    run = synthetic.record(workers=1)
    synthetic.write_run(tmp_path, synthetic.record(workers=1, planned=[*run.planned, run.planned[0]]))
    with pytest.raises(ReportError, match=r"run\.json: .*'baseline\.worker-1'"):
        load(tmp_path)


def test_a_trial_id_that_leads_out_of_the_folder_is_refused(tmp_path):
    synthetic.write_run(tmp_path, synthetic.record(workers=1))
    key = ("planned", 0, "trial_id")
    hostile.rewrite_checksummed(
        tmp_path / "run.json", lambda document: hostile.set_value(document, key, "../../elsewhere")
    )
    with pytest.raises(ReportError, match=r"trial_id: .*'\.\./\.\./elsewhere'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: &a [x, x]\n" + "\n".join(f"b{n}: &b{n} [*a, *a]" for n in range(30)), r"prices\.yaml: a: unknown field"),
        ("[" * 1000, "nested too"),
        ("# " + "x" * 1_200_000, "1,000,000 bytes"),
    ],
)
def test_prices_that_would_fill_the_memory_are_refused(good, tmp_path, content, message):
    table = tmp_path / "prices.yaml"
    table.write_text(content)
    with pytest.raises(PriceError, match=message):
        summarize(load(good), Pricing(table=table))
