"""Folders that were not made in good faith: every such file is refused by name, and the rest of the report stands.

`python -m tests.support.reports.hostile` goes on where this ends: thousands of generated cases, whole reports, drawn.
"""

import os
import shutil

import pytest

from reports.read import telemetry
from reports.read.load import load
from reports.read.run import ReportError
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
    """A copy of it."""
    return shutil.copytree(good, tmp_path / "run")


def test_a_plan_of_no_trial_is_no_run_that_went_well(folder):
    hostile.seal(folder / "run.json", lambda document: hostile.put(document, ("planned",), []))
    with pytest.raises(ReportError, match=r"run\.json: it plans no trial; there is nothing to report"):
        load(folder)


def test_there_are_many():
    assert len(CASES) >= 150


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_by_name_and_the_rest_stands(folder, case):
    CASES[case](folder)
    if case.startswith("run.json"):
        with pytest.raises(ReportError, match=r"^[^\n]*run\.json: [^\n]*$"):
            load(folder)
        return
    run = load(folder)
    summary = summarize(run)
    assert len(run.results) + len(run.missing) == len(run.record.planned)
    assert len(summary.measured_rows) >= 1
    lost = [one.file for one in run.rejected]
    # A ledger that was written twice, or whose lines are none, is read as far as it goes; so are a telemetry's rows.
    is_lenient = case.startswith(("ledger", "trials/baseline.worker-1/telemetry"))
    assert len(lost) == 1 or (is_lenient and not lost)
    assert all(case.startswith((name, "(")) for name in lost)


@pytest.mark.parametrize(("damage", "what"), [("a FIFO", "a pipe"), ("a folder", "a folder")])
def test_a_ledger_that_is_no_file_is_named_and_counted_and_the_rest_stands(folder, damage, what):
    hostile.DAMAGE[damage](folder / "ledger.jsonl")
    run = load(folder)
    assert [(one.file, one.reason) for one in run.rejected] == [
        ("ledger.jsonl", f"cannot be read: it is {what}, not a file")
    ]
    assert (len(run.results), run.missing) == (len(run.record.planned), ())


def test_a_folder_whose_name_is_no_text_is_named_with_escapes(folder):
    os.mkdir(os.fsencode(folder / "trials") + b"/caf\xe9")
    (one,) = load(folder).rejected
    assert one.file.encode() == b"trials/caf\\xe9"


def test_a_plan_that_names_a_trial_twice_is_counted_once_and_said(tmp_path):
    run = synthetic.record(workers=1)
    synthetic.write_run(tmp_path, synthetic.record(workers=1, planned=[*run.planned, run.planned[0]]))
    loaded = load(tmp_path)
    assert [(one.file, one.reason) for one in loaded.rejected] == [
        ("run.json", "plans trial 'baseline.worker-1' more than once; it is counted once")
    ]
    assert (len(loaded.record.planned), summarize(loaded).exit_code) == (2, 0)


def test_a_plan_whose_trial_would_stand_in_another_folder_is_refused(tmp_path):
    synthetic.write_run(tmp_path, synthetic.record(workers=1))
    place = ("planned", 0, "trial_id")
    hostile.seal(tmp_path / "run.json", lambda document: hostile.put(document, place, "../../elsewhere"))
    with pytest.raises(ReportError, match=r"trial_id: expected a folder's name, found '\.\./\.\./elsewhere'"):
        load(tmp_path)


def test_telemetry_without_its_columns_is_refused_and_a_line_that_is_none_is_left_out(tmp_path):
    path = tmp_path / "telemetry.csv"
    path.write_bytes(b"a,b\n1,2\n")
    assert telemetry.objection(path) == "its first line does not name elapsed_sec and phase"
    path.write_bytes(b"elapsed_sec,phase\n1,measure\n2,meas\0ure\n\0,x\n1e999,y\n" + b"," * 9_000 + b"\n3,measure\n")
    assert telemetry.objection(path) is None
    assert telemetry.read(path)["elapsed_sec"].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: &a [x, x]\n" + "\n".join(f"b{n}: &b{n} [*a, *a]" for n in range(30)), "not YAML that can be read"),
        ("[" * 1000, "nested too deep"),
        ("# " + "x" * 1_200_000, "it is larger than 1,000,000 bytes"),
    ],
)
def test_prices_that_would_fill_the_memory_are_refused(good, tmp_path, content, said):
    table = tmp_path / "prices.yaml"
    table.write_text(content)
    with pytest.raises(PriceError, match=said):
        summarize(load(good), Pricing(table=table))
