"""Report of a run, from its folder to its files: text, figures and errors."""

import csv
import io
import itertools
import json
import re
import shutil
import warnings
from dataclasses import replace

import pytest

from bench.records.status import TrialStatus
from reports.figures.drawing import style
from reports.figures.memory import MEMORY
from reports.formatting import escape_text
from reports.output.write_report import build
from reports.read.loaded_run import ReportError, ReportWriteError
from reports.summary import sentences
from reports.summary.prices import Pricing
from reports.summary.summary import PROFILE_NOTES
from reports.summary.warnings import WarningCode
from tests.support.faults import full_disk
from tests.support.paths import ROOT
from tests.support.reports import synthetic
from tests.support.reports.fixtures import HOSTILE, REAL_PNG, check_hostile_is_text, page_text, read_report_file
from tests.support.reports.synthetic import plan_of


def read_csv(report, name):
    return list(csv.DictReader(io.StringIO(read_report_file(report, name))))


def test_golden_numbers_reach_every_file(exact):
    assert re.match(
        r"Train with optimized: 2\.00x \(2\.00 to 2\.00\) .* baseline on 4 workers .*CPU, profile tiny",
        sentences.recommendation(exact.values),
    )
    assert sentences.recommendation(exact.values) in page_text(exact)
    assert "4.00x; 4.00 to 4.00; faster" in read_report_file(exact, "report.md")
    configurations = {
        configuration["configuration"]: configuration
        for configuration in json.loads(read_report_file(exact, "summary.json"))["configurations"]
    }
    step_time = configurations["optimized"]["step_time_sec"]
    assert [step_time[name] for name in ("value", "low", "high")] == pytest.approx([0.08, 0.08, 0.08])
    assert (step_time["n"], step_time["over"]) == (60, "workers")
    assert configurations["optimized"]["elapsed_samples_per_sec"]["value"] == pytest.approx(8 / 0.08)
    assert configurations["baseline"]["steady_tokens_per_sec"]["value"] == pytest.approx(512 / 0.16)
    assert configurations["baseline"]["padding_percent"] == pytest.approx(25.0)
    assert configurations["optimized"]["useful_tokens_ratio"]["value"] == pytest.approx(2.0)
    assert (configurations["baseline"]["n_workers"], configurations["baseline"]["n_steps"]) == (4, 60)
    (line,) = (row for row in read_csv(exact, "summary.csv") if row["is_baseline"] == "False")
    assert (float(line["samples_ratio"]), line["samples_ratio_verdict"]) == (pytest.approx(4.0), "faster")


def test_a_good_run_exits_0_and_its_page_says_what_ran_and_that_nothing_failed_or_contended(exact):
    assert (exact.values.exit_code, exact.values.counts, exact.values.warnings) == (0, {TrialStatus.SUCCEEDED: 8}, ())
    text = page_text(exact)
    for fact in (
        *(synthetic.RUN_ID, "2026-03-01 10:15:00 UTC", "0123456789ab", "quick", "local, 4 workers"),
        "8 planned trials",
        "Hardware needs a trial of suite hardware: inv bench --suite=hardware",
        "2.00x (2.00 to 2.00)",  # the ratio of useful tokens
        "64 tokens",  # a shorter sample than the baseline's
    ):
        assert fact in text
    assert "US$" not in text
    assert json.loads(read_report_file(exact, "summary.json"))["prices"] == []
    note = PROFILE_NOTES["tiny"]
    files = [path for path in exact.files if path.suffix in (".svg", ".md") or path.stem == "summary"]
    assert not [path for path in files if note not in " ".join(re.sub(r"<[^>]+>\s*", " ", path.read_text()).split())]
    assert text.index(note) < text.index("Configuration")


def test_figures_are_files_and_in_the_page_which_is_written_last(exact):
    names = {path.name for path in exact.files if path.parent.name == "figures"}
    drawn = ("01_executive_summary", "02_training_performance", "10_loss_curves")
    assert names == {f"{stem}.{kind}" for stem in drawn for kind in ("png", "svg")}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in exact.files if path.suffix == ".png")
    assert read_report_file(exact, "index.html").count('role="img" aria-label="') == len(drawn)
    assert exact.files[-1].name == "index.html"


@pytest.mark.usefixtures("without_figures")
def test_the_recommended_configuration_is_first_and_the_head_has_one_ratio_and_one_sentence(folder):
    trials = (
        synthetic.trial("baseline"),
        synthetic.trial("other", lora_rank=8),
        synthetic.trial("best", max_seq_len=32),
    )
    speeds = {"baseline": 0.15, "other": 0.15, "best": 0.02}
    synthetic.write_run(folder, synthetic.record(trials, workers=3), speeds=speeds)
    report = build(folder)
    page = read_report_file(report, "index.html")
    body = page[page.index("<tbody>") :]
    assert re.findall(r'<th scope="row">([a-z]+)', body)[:3] == ["best", "baseline", "other"]
    assert [row.label for row in report.values.rows] == ["baseline", "other", "best"]  # the plan's order
    head = page[page.index("<header>") : page.index("</header>")]
    assert len(set(re.findall(r"[0-9.]+x", head))) == 1
    title = re.findall(r"<h1>(.*?)</h1>", head)[0]
    assert report.document.headline == title
    markdown = read_report_file(report, "report.md")
    assert markdown.splitlines()[0] == f"# {title}"
    assert re.findall(r"^\| (best|baseline|other); ", markdown, re.MULTILINE)[:3] == ["best", "baseline", "other"]


def test_the_page_has_no_script_refers_to_nothing_outside_itself_and_is_well_formed(exact):
    page = read_report_file(exact, "index.html")
    assert "<script" not in page
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert not re.search(r"""(?:src|href)="(?!data:|\#)""", page)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert not re.search(r"<th(?! scope=)[ >]", page)
    levels = [int(level) for level in re.findall(r"<h([1-6])", page)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', page)) <= set(ids)


def test_the_same_run_gives_the_same_bytes(exact):
    first = {path: path.read_bytes() for path in exact.files}
    assert {path: path.read_bytes() for path in build(exact.index.parents[1]).files} == first


def test_a_hostile_name_is_text_everywhere(folder):
    others = [
        replace(trial, name=f"{number} {HOSTILE}"[:80], reason=HOSTILE)
        for number, trial in enumerate(synthetic.other_kinds())
    ]
    trials = (
        synthetic.quick()[0],
        *others,
        *(synthetic.trial(f"{HOSTILE[:78]} {rank}", reason=HOSTILE, lora_rank=rank) for rank in (8, 9)),
    )
    run = synthetic.record(trials, workers=1, created_at=HOSTILE, suite=HOSTILE)
    synthetic.write_run(folder, run)
    synthetic.rewrite(folder, run.planned[-1], status=TrialStatus.FAILED, reason=HOSTILE, log_tail=[HOSTILE])
    device = "\x1b]0;\0\u202e"
    contexts = [
        synthetic.measurement(HOSTILE, 1.0, note=HOSTILE, **{HOSTILE: HOSTILE, "deep": {"a": [HOSTILE]}, "b": None}),
        synthetic.measurement("x_sec", None, note=HOSTILE, **{HOSTILE: "@sum", "deep": [1], "b": True}),
    ]
    odd = {"fingerprint": synthetic.fingerprint(gpu_name=device), "measurements": contexts, "flags": [HOSTILE]}
    synthetic.rewrite(folder, run.planned[0], **odd)
    (folder / "trials" / "<img src=x>").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # characters without glyphs in the figures' font must not fail
        report = build(folder, pricing=Pricing(usd_per_gpu_hour=2.0, source=HOSTILE))
    page = read_report_file(report, "index.html")
    assert not re.search("<(script|img)", page)
    assert escape_text(device) in page
    texts = {path.name: path.read_text() for path in report.files if path.suffix in (".csv", ".html", ".md", ".svg")}
    assert not [name for name, content in texts.items() if escape_text(content) != content]
    assert any(cell.startswith("'=cmd") for cell in check_hostile_is_text(report, "summary.csv"))
    assert "'@sum" in check_hostile_is_text(report, "measurements.csv")
    names = [each["configuration"] for each in json.loads(read_report_file(report, "summary.json"))["configurations"]]
    assert any(name.startswith(HOSTILE[:78]) for name in names)


@pytest.mark.usefixtures("without_figures")
def test_a_failed_trials_steps_are_excluded_and_missing_and_rejected_are_listed_by_name_and_dollars_by_source(folder):
    run = synthetic.exact_run(folder)
    slow = {"status": TrialStatus.OUT_OF_MEMORY, "reason": "tried to allocate 2 GiB", "log_tail": ["the last line"]}
    synthetic.rewrite(folder, plan_of(run, "optimized.worker-3"), steps=15, step_time_sec=9.0, **slow)
    shutil.rmtree(folder / "trials/baseline.worker-1")
    (folder / "trials/baseline.worker-2/result.json").write_bytes(b"{")
    report = build(folder, pricing=Pricing(usd_per_gpu_hour=3.6, source="a list, 2026-01-31"))
    row = next(row for row in report.values.rows if row.label == "optimized")
    assert (row.measured.n_workers, row.measured.n_steps) == (3, 45)
    assert row.measured.step_time_sec.high == pytest.approx(0.08)
    text, markdown = page_text(report), read_report_file(report, "report.md").replace("\\_", "_")
    for fact in ("baseline.worker-1", "trials/baseline.worker-2/result.json", "OUT_OF_MEMORY", slow["reason"]):
        assert fact in text
        assert fact in markdown
    assert "the last line" in text
    # Every dollar has its price and source, in which no line ends inside a day.
    assert row.cost.usd_per_1000_samples.value == pytest.approx(0.01)
    assert "a list, 2026-01-31" in markdown
    assert "(a list, <time>2026-01-31</time>)" in read_report_file(report, "index.html")
    assert {line["price_source"] for line in read_csv(report, "summary.csv")} == {"a list, 2026-01-31"}
    assert WarningCode.CPU_PRICE in {warning.code for warning in report.values.warnings}
    assert [missing.trial_id for missing in report.values.missing] == ["baseline.worker-1", "baseline.worker-2"]
    assert (report.values.exit_code, len(report.values.rejected)) == (1, 1)


def test_a_run_without_a_single_success_gets_a_report_that_says_so_and_no_figure_of_an_earlier_one(folder):
    run = synthetic.exact_run(folder)
    figures = folder / "report" / "figures"
    figures.mkdir(parents=True)
    (figures / "08_memory.svg").write_text("earlier")
    for plan in run.planned:
        synthetic.rewrite(folder, plan, status=TrialStatus.FAILED, reason="no luck")
    report = build(folder)
    assert report.values.exit_code == 1
    assert "8 FAILED" in sentences.recommendation(report.values)
    assert sentences.recommendation(report.values) in page_text(report)
    assert ": 4 FAILED" in page_text(report)
    assert not [path for path in report.files if path.suffix in (".png", ".svg")]
    assert list(figures.iterdir()) == []


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("link", ["report", "report/figures"])
def test_a_report_is_not_written_through_a_link_nor_are_figures_removed_there(folder, tmp_path, link):
    synthetic.exact_run(folder)
    photo = tmp_path / "elsewhere" / "figures" / "photo.png"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(b"mine")
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(photo.parents[1] if link == "report" else photo.parent)
    with pytest.raises(ReportError, match=f"{link}: .*link"):
        build(folder)
    assert [path for path in photo.parents[1].rglob("*") if path.is_file()] == [photo]


@pytest.mark.usefixtures("without_figures")
def test_an_unknown_price_writes_nothing_and_a_file_in_place_of_the_folder_is_named(folder):
    synthetic.exact_run(folder)
    with pytest.raises(ReportError, match=r"cost\.shape"):
        build(folder, pricing=Pricing(shape="none"))
    assert not (folder / "report").exists()
    (folder / "report").write_text("in the way")
    with pytest.raises(ReportWriteError, match=r"/report\b"):
        build(folder)


@pytest.mark.usefixtures("without_figures")
def test_an_interrupted_report_leaves_the_old_page(folder, monkeypatch):
    synthetic.exact_run(folder)
    report = build(folder)
    before = report.index.read_bytes()
    synthetic.write_run(folder, exact=True, speeds={"optimized": 0.3})
    monkeypatch.setattr("reports.output.write_report.write_atomic", full_disk)
    with pytest.raises(ReportError, match="No space left on device"):
        build(folder)
    assert report.index.read_bytes() == before


@pytest.mark.usefixtures("without_figures")
def test_every_field_of_summary_json_is_documented(folder):
    run = synthetic.exact_run(folder)
    synthetic.rewrite(folder, run.planned[0], status=TrialStatus.FAILED, reason="x")
    document = json.loads(read_report_file(build(folder), "summary.json"))
    documented_names = set(re.findall(r"`([a-z_0-9]+)`", (ROOT / "reports" / "README.md").read_text()))
    fields = set(document) | set(document["configurations"][0]) | set(document["failures"][0]) | set(document["run"])
    assert fields <= documented_names


def test_a_figures_png_is_wide_enough_for_a_slide(a10):
    with style.figure_style():
        drawn = REAL_PNG(MEMORY.gather(*a10).draw())
    assert drawn.startswith(b"\x89PNG")
    assert int.from_bytes(drawn[16:20], "big") == 1320


def test_one_trial_of_one_step_on_one_node_is_enough_for_every_figure(tmp_path):
    kinds = ("training", "hardware", "loading", "inference", "distributed")
    trials = tuple(synthetic.trial(kind, kind=kind, measured_steps=1, warmup_steps=0) for kind in kinds)
    synthetic.write_run(tmp_path, synthetic.record(trials, workers=1), exact=True)
    report = build(tmp_path, pricing=Pricing(usd_per_gpu_hour=2.0, source="a list"))
    assert report.values.counts == {TrialStatus.SUCCEEDED: len(kinds)}
    assert len(report.document.pictures) == 8
