"""The whole report, from a folder to its files: what is said, what is shown, and what can go wrong."""

import base64
import csv
import hashlib
import html.parser
import io
import json
import re
import shutil
import warnings
from pathlib import Path

import pytest

from bench.records.result import TrialStatus
from reports.output.build import build
from reports.read.run import ReportError, ReportWriteError
from reports.statistics import per_process
from reports.summary.prices import Pricing
from tests.support.faults import full_disk
from tests.support.paths import ROOT
from tests.support.reports import synthetic
from tests.support.reports.run_writer import HOSTILE, check_hostile, page_text, read
from tests.support.reports.synthetic import plan_of

NOTE = "These numbers say nothing about an A10"


def rewrite(folder, run, of, **more):
    """Write again the results for which `of` gives other fields of the fingerprint."""
    for plan in run.planned:
        if (changed := of(plan)) is not None:
            synthetic.rewrite(folder, plan, exact=True, fingerprint=synthetic.fingerprint(**changed), **more)


def test_golden_numbers_reach_every_file(exact):
    assert exact.finding == (
        "optimized processed 4.00x (4.00 to 4.00) as many samples per second as baseline "
        "on 4 workers of one machine (CPU, profile tiny)."
    )
    assert exact.finding in page_text(exact)
    assert "4.00x (4.00 to 4.00) faster" in read(exact, "report.md")
    found = {one["configuration"]: one for one in json.loads(read(exact, "summary.json"))["configurations"]}
    told = found["optimized"]["step_time_sec"]
    assert [told[name] for name in ("value", "low", "high")] == pytest.approx([0.08, 0.08, 0.08])
    assert (told["n"], told["over"]) == (60, "workers")
    assert found["optimized"]["samples_per_sec"]["value"] == pytest.approx(8 / 0.08)
    assert found["baseline"]["tokens_per_sec"]["value"] == pytest.approx(512 / 0.16)
    assert found["baseline"]["padding_percent"] == pytest.approx(25.0)
    assert found["optimized"]["useful_tokens_ratio"]["value"] == pytest.approx(2.0)
    assert (found["baseline"]["n_workers"], found["baseline"]["n_steps"]) == (4, 60)
    line = next(one for one in csv.DictReader(io.StringIO(read(exact, "summary.csv"))) if one["is_baseline"] == "False")
    assert (float(line["samples_ratio"]), line["samples_verdict"]) == (pytest.approx(4.0), "faster")


def test_the_tiny_profile_says_so_in_every_file(exact):
    for name in ("report.md", "summary.csv", "summary.json"):
        assert NOTE in read(exact, name), name
    assert page_text(exact).index(NOTE) < page_text(exact).index("Configuration")
    for path in exact.files:
        if path.suffix == ".svg":
            assert "say nothing about an A10" in re.sub(r"<[^>]+>\s*", " ", path.read_text()), path.name


@pytest.mark.usefixtures("undrawn")
def test_the_gpu_profile_needs_no_note(folder):
    trials = tuple(
        synthetic.trial(name, profile="gpu", max_seq_len=length) for name, length in (("baseline", 128), ("other", 64))
    )
    synthetic.write_run(folder, synthetic.record(trials, profile="gpu"))
    made = build(folder)
    assert made.profile_note is None
    assert NOTE not in page_text(made)


def test_a_good_run_exits_0_and_its_page_says_what_ran_and_that_nothing_failed_or_contended(exact):
    assert (exact.exit_code, exact.counts, exact.cautions) == (0, {TrialStatus.SUCCEEDED: 8}, ())
    said = page_text(exact)
    for fact in (
        *(synthetic.RUN_ID, "2026-03-01 10:15:00 UTC", "0123456789ab", "quick", "replicate", "local, 4 workers"),
        "Nothing. 8 planned trials succeeded",
        # Useful tokens tell what samples hide.
        "optimized reached 2.00x (2.00 to 2.00) the rate of baseline",
        "a sample of at most 64 tokens is not the same work as one of at most 128",
    ):
        assert fact in said
    assert "US$" not in said
    assert json.loads(read(exact, "summary.json"))["price"] is None


def test_figures_stand_beside_the_page_which_is_written_last_and_in_it(exact):
    names = {path.name for path in exact.files if path.parent.name == "figures"}
    drawn = ("01_executive_summary", "02_training_performance", "10_loss_curves", "14_worker_map")
    assert names == {f"{stem}.{kind}" for stem in drawn for kind in ("png", "svg")}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in exact.files if path.suffix == ".png")
    assert read(exact, "index.html").count('role="img" aria-label="') == 2 * len(drawn)  # each wide and narrow
    assert exact.files[-1].name == "index.html"


def test_a_figure_without_data_is_not_drawn_and_the_page_says_what_would_make_it_appear(exact):
    wanted = "Hardware needs a trial of suite hardware: inv bench --suite=hardware"
    assert wanted in page_text(exact)
    assert wanted in read(exact, "report.md").replace("**", "").replace("`", "")


def test_the_first_sentence_is_what_to_run_with_its_interval(exact):
    assert exact.recommendation == (
        "Train with optimized: 2.00x (2.00 to 2.00) the useful tokens per second of baseline "
        "on 4 workers of one machine (CPU, profile tiny)."
    )
    assert f"<h1>{exact.recommendation}</h1>" in read(exact, "index.html")
    assert read(exact, "report.md").startswith(f"# {exact.recommendation}")


@pytest.mark.usefixtures("undrawn")
def test_a_configuration_that_is_not_shown_to_be_faster_is_not_recommended(folder):
    trials = (synthetic.trial("baseline"), synthetic.trial("other", lora_rank=8))
    synthetic.write_run(folder, synthetic.record(trials), speeds={"baseline": 0.15, "other": 0.15})
    made = build(folder)
    assert made.recommendation.startswith("Stay with baseline: ")
    assert made.finding.startswith("No configuration was shown to be faster than baseline")
    assert made.rows[1].samples_ratio.verdict is None
    assert 'baseline <span class="tag">recommended</span>' in read(made, "index.html")
    assert "faster</small>" not in read(made, "index.html")


def scripts(page: str) -> list[str]:
    """What the page would run, by opening tag."""
    return re.findall(r"<script\b[^>]*>(.*?)</script>", page, re.DOTALL | re.IGNORECASE)


def test_the_page_refers_to_nothing_outside_itself_allows_its_own_script_alone_and_has_unique_ids(exact):
    page = read(exact, "index.html")
    (ours,) = scripts(page)
    allowed = base64.b64encode(hashlib.sha256(ours.encode()).digest()).decode()
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]+)"', page)[0])
    assert f"script-src 'sha256-{allowed}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"""(?:src|href)="(?!data:|\#)""", page)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', page)) <= set(ids)


def test_the_same_run_gives_the_same_bytes(folder):
    synthetic.write_run(folder, synthetic.record(workers=1))  # one worker: its intervals come from its steps, by draws
    first = {path: path.read_bytes() for path in build(folder).files}
    per_process._bootstrap_indices.cache_clear()  # another process draws anew
    assert {path: path.read_bytes() for path in build(folder).files} == first


def test_a_hostile_name_is_text_everywhere(folder):
    hostile = synthetic.trial(HOSTILE[:80], reason=HOSTILE)
    run = synthetic.record((synthetic.quick()[0], hostile), created_at=HOSTILE, suite=HOSTILE)
    synthetic.write_run(folder, run)
    synthetic.rewrite(folder, run.planned[-1], status=TrialStatus.FAILED, reason=HOSTILE, log_tail=[HOSTILE])
    (folder / "trials" / "<img src=x>").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a script without glyphs in the figures' font is no reason to fail
        made = build(folder, pricing=Pricing(usd_per_gpu_hour=2.0, source=HOSTILE))
    page = read(made, "index.html")
    assert len(scripts(page)) == 1
    assert "alert" not in scripts(page)[0]
    assert "<img" not in page
    _Parses().feed(page)
    assert any(cell.startswith("'=cmd") for cell in check_hostile(made, "summary.csv"))
    assert any(one["configuration"] == HOSTILE[:80] for one in json.loads(read(made, "summary.json"))["configurations"])


class _Parses(html.parser.HTMLParser):
    """Every tag that is opened is closed, in order."""

    _VOID = ("meta", "link", "br", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):  # noqa: ARG002 - html.parser calls it so
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_failed_trials_are_shown_with_their_end_reason_and_log(folder):
    run = synthetic.exact_run(folder)
    why = {"status": TrialStatus.OUT_OF_MEMORY, "reason": "tried to allocate 2 GiB", "log_tail": ["the last line"]}
    synthetic.rewrite(folder, plan_of(run, "optimized.worker-3"), steps=4, **why)
    made = build(folder)
    said = page_text(made)
    assert made.exit_code == 1
    for words in ("optimized.worker-3", "OUT_OF_MEMORY", "tried to allocate 2 GiB", "the last line"):
        assert words in said
        assert words in read(made, "report.md").replace("\\_", "_") or words == "the last line"
    assert "1 of 8 planned trials gave no measurement (7 SUCCEEDED, 1 OUT_OF_MEMORY)" in said


@pytest.mark.usefixtures("undrawn")
def test_a_failed_trials_steps_are_in_no_average(folder):
    run = synthetic.exact_run(folder)
    slow = {"status": TrialStatus.PREEMPTED, "reason": "SIGTERM", "steps": 15, "step_time_sec": 9.0}
    synthetic.rewrite(folder, plan_of(run, "optimized.worker-3"), **slow)
    row = next(row for row in build(folder).rows if row.label == "optimized")
    assert (row.measured.n_workers, row.measured.n_steps) == (3, 45)
    assert row.measured.step_time_sec.high == pytest.approx(0.08)


@pytest.mark.usefixtures("undrawn")
def test_missing_and_rejected_are_listed_by_name(folder):
    synthetic.exact_run(folder)
    shutil.rmtree(folder / "trials/baseline.worker-1")
    (folder / "trials/baseline.worker-2/result.json").write_bytes(b"{")
    made = build(folder)
    said = page_text(made)
    assert "baseline.worker-1 worker-1 nothing was collected" in said
    assert "trials/baseline.worker-2/result.json not complete JSON" in said
    assert (made.exit_code, len(made.missing), len(made.rejected)) == (1, 2, 1)


def test_a_run_without_a_single_success_gets_a_report_that_says_so_and_no_figure_of_an_earlier_one(folder):
    run = synthetic.exact_run(folder)
    figures = build(folder).index.parent / "figures"
    for plan in run.planned:
        synthetic.rewrite(folder, plan, status=TrialStatus.FAILED, reason="no luck")
    made = build(folder)
    assert made.exit_code == 1
    assert made.finding.startswith("No trial of this run succeeded (8 FAILED)")
    assert made.finding in page_text(made)
    assert "no trial succeeded: 4 FAILED" in page_text(made)
    assert not [path for path in made.files if path.suffix in (".png", ".svg")]
    assert list(figures.iterdir()) == []


@pytest.mark.usefixtures("undrawn")
def test_a_command_that_the_page_names_is_one_to_copy(folder):
    run = synthetic.exact_run(folder)
    synthetic.rewrite(folder, run.planned[0], status=TrialStatus.LOST, reason="gone")
    assert f"<code>inv bench --resume={run.run_id}</code>" in read(build(folder), "index.html")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("link", ["report", "report/figures"])
def test_a_report_is_not_written_through_a_link_nor_are_figures_removed_there(folder, tmp_path, link):
    synthetic.exact_run(folder)
    photo = tmp_path / "elsewhere" / "figures" / "photo.png"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(b"mine")
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(photo.parents[1] if link == "report" else photo.parent)
    with pytest.raises(ReportError, match=f"{link}: .*symbolic link; "):
        build(folder)
    assert [path for path in photo.parents[1].rglob("*") if path.is_file()] == [photo]


@pytest.mark.usefixtures("undrawn")
def test_a_failed_baseline_leaves_the_others_without_a_ratio(folder):
    run = synthetic.exact_run(folder)
    for plan in run.planned:
        if plan.trial.name == "baseline":
            synthetic.rewrite(folder, plan, status=TrialStatus.TIMED_OUT, reason="too slow")
    made = build(folder)
    assert made.finding.startswith("optimized processed 100 (100 to 100) samples per second per worker on 4 workers")
    assert "baseline has no successful trial, so no configuration can be compared with it." in made.cautions


@pytest.mark.usefixtures("undrawn")
def test_one_worker_one_step_and_one_configuration_are_enough(folder):
    single = synthetic.trial("alone", measured_steps=1, warmup_steps=0)
    synthetic.write_run(folder, synthetic.record((single,), workers=1), exact=True)
    made = build(folder)
    assert made.finding == (
        "alone processed 26.7 samples per second per worker on 1 worker of one machine (CPU, profile tiny)."
    )
    (row,) = made.rows
    assert (row.measured.step_time_sec.low, row.measured.worker_spread, row.samples_ratio) == (None, None, None)


@pytest.mark.usefixtures("undrawn")
def test_two_configurations_of_one_step_each_show_a_ratio_without_a_verdict(folder):
    trials = (synthetic.trial("baseline", measured_steps=1), synthetic.trial("other", measured_steps=1, lora_rank=8))
    synthetic.write_run(folder, synthetic.record(trials, workers=1), speeds={"other": 0.08}, exact=True)
    made = build(folder)
    assert "no interval, so no difference is shown" in made.finding
    assert made.rows[1].samples_ratio.verdict is None


@pytest.mark.usefixtures("undrawn")
def test_a_sharded_run_reports_one_worker_per_configuration(folder):
    synthetic.exact_run(folder, spread="shard")
    made = build(folder)
    assert [row.measured.n_workers for row in made.rows] == [1, 1]
    assert "shard" in page_text(made)


@pytest.mark.usefixtures("undrawn")
def test_slower_configurations_are_not_called_faster(folder):
    synthetic.write_run(folder, speeds={"baseline": 0.1, "optimized": 0.4}, exact=True)
    finding = build(folder).finding
    assert re.match(r"No configuration was faster than baseline: .* optimized, processed 0\.50x", finding)


def test_a_price_shows_dollars_with_their_source_everywhere(folder):
    synthetic.exact_run(folder)
    made = build(folder, pricing=Pricing(usd_per_gpu_hour=3.6, source="a list, 2026-01-31"))
    assert made.rows[1].cost.usd_per_1000_samples.value == pytest.approx(0.01)
    document = json.loads(read(made, "summary.json"))
    assert (document["price"]["usd_per_gpu_hour"], document["price"]["source"]) == (3.6, "a list, 2026-01-31")
    for words in (page_text(made), read(made, "report.md")):
        assert "a list, 2026-01-31" in words
        assert "0.01" in words
    line = next(one for one in csv.DictReader(io.StringIO(read(made, "summary.csv"))) if one["is_baseline"] == "False")
    assert float(line["usd_per_1000_samples"]) == pytest.approx(0.01)
    assert line["price_source"] == "a list, 2026-01-31"
    figure = re.sub(r"<[^>]+>\s*", " ", read(made, "figures/01_executive_summary.svg"))
    assert "US$ per 1,000 samples" in figure
    assert "a list, 2026-01-31" in figure
    assert any("price is a GPU's" in caution for caution in made.cautions)
    assert 'data-label="$3.60 per GPU hour, as set"' in read(made, "index.html"), "two prices may be equal dollars"
    assert read(made, "index.html").count("(a list, <time>2026-01-31</time>)") == 2, "no line ends inside a day"


@pytest.mark.usefixtures("undrawn")
def test_a_price_without_a_source_is_refused_before_anything_is_written_and_a_folder_in_the_way_named(folder):
    synthetic.exact_run(folder)
    with pytest.raises(ReportError, match=r"cost\.price_source: a price needs its source"):
        build(folder, pricing=Pricing(usd_per_gpu_hour=2.0))
    assert not (folder / "report").exists()
    (folder / "report").write_text("in the way")
    with pytest.raises(
        ReportWriteError, match=r"report.*cannot be written: .*; check owner, permissions and free space, "
    ):
        build(folder)


@pytest.mark.usefixtures("undrawn")
def test_mixed_gpus_are_pointed_out(folder):
    run = synthetic.exact_run(folder)
    gpus = {"optimized.worker-1": "NVIDIA A10", "optimized.worker-2": "NVIDIA H200"}
    rewrite(
        folder,
        run,
        lambda plan: {"device": "cuda", "gpu_name": gpus[plan.trial_id]} if plan.trial_id in gpus else None,
        step_time_sec=0.08,
    )
    made = build(folder)
    assert any("different devices (CPU, NVIDIA A10, NVIDIA H200)" in caution for caution in made.cautions)
    differences = json.loads(read(made, "summary.json"))["fingerprint"]["differences"]
    assert differences["gpu_name"]["NVIDIA H200"] == ["optimized.worker-2"]  # its other trial said CPU


@pytest.mark.usefixtures("undrawn")
def test_a_worker_with_another_driver_is_named(folder):
    run = synthetic.exact_run(folder)
    rewrite(folder, run, lambda plan: {"gpu_driver": "580.1"} if plan.worker == "worker-4" else None)
    said = page_text(build(folder))
    assert "580.1 on worker-4" in said
    assert "none on worker-1, worker-2, worker-3" in said


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            lambda plan: {"recipe": "stock" if plan.worker == "worker-4" else "fast"},
            r"Not every trial .*: recipe differs; .*fingerprint",
        ),
        (
            lambda _: {"cpu_allowed_cores": 2},
            "4 workers .*1 thread .*2 cores of one machine",
        ),
    ],
)
def test_a_condition_that_differs_and_too_few_cores_are_a_caution(folder, told, said):
    rewrite(folder, synthetic.exact_run(folder), told, step_time_sec=0.1)
    (caution,) = build(folder).cautions
    assert re.match(said, caution)


@pytest.mark.usefixtures("undrawn")
def test_pods_on_machines_of_their_own_do_not_contend(folder):
    run = synthetic.exact_run(folder, fleet_kind="kubernetes")
    rewrite(folder, run, lambda _: {"cpu_allowed_cores": 1})
    made = build(folder)
    assert made.cautions == ()
    assert "on 4 workers (CPU, profile tiny)" in made.finding


@pytest.mark.usefixtures("undrawn")
def test_a_slow_worker_is_pointed_out(folder):
    run = synthetic.exact_run(folder)
    synthetic.rewrite(folder, plan_of(run, "baseline.worker-2"), exact=True, step_time_sec=0.16 * 1.5)
    assert any("baseline: the slowest worker took 1.50x" in caution for caution in build(folder).cautions)


def test_more_configurations_than_a_figure_holds_are_said_to_be_left_out(folder):
    trials = tuple(synthetic.trial(f"rank-{rank}", lora_rank=rank) for rank in range(1, 21))
    synthetic.write_run(folder, synthetic.record(trials, workers=1, spread="shard"))
    made = build(folder)
    figure = re.sub(r"<[^>]+>\s*", " ", read(made, "figures/01_executive_summary.svg"))
    assert "14 of 20 configurations" in " ".join(figure.split())
    assert all(f"rank-{rank}" in page_text(made) for rank in range(1, 21))


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_report_leaves_the_old_page(folder, monkeypatch):
    synthetic.exact_run(folder)
    made = build(folder)
    before = made.index.read_bytes()
    synthetic.write_run(folder, exact=True, speeds={"optimized": 0.3})
    monkeypatch.setattr("reports.output.build.write_atomic", full_disk)
    with pytest.raises(ReportError, match="No space left on device"):
        build(folder)
    assert made.index.read_bytes() == before


@pytest.mark.usefixtures("undrawn")
def test_every_field_of_summary_json_is_documented(folder):
    run = synthetic.exact_run(folder)
    synthetic.rewrite(folder, run.planned[0], status=TrialStatus.FAILED, reason="x")
    document = json.loads(read(build(folder), "summary.json"))
    documented = Path("reports/README.md")
    words = set(re.findall(r"`([a-z_0-9]+)`", (ROOT / documented).read_text()))
    fields = set(document) | set(document["configurations"][0]) | set(document["failures"][0]) | set(document["run"])
    assert fields <= words


@pytest.mark.usefixtures("undrawn")
def test_a_run_of_thousands_is_still_a_page_and_says_what_it_leaves_out(folder):
    trials = tuple(synthetic.trial(f"rank-{rank}", lora_rank=rank) for rank in range(1, 602))
    run = synthetic.write_run(folder, synthetic.record(trials, workers=1, spread="shard"))
    for plan in run.planned[:210]:
        failed = {"status": TrialStatus.FAILED, "reason": "no luck", "log_tail": ["x" * 200]}
        synthetic.rewrite(folder, plan, worker="worker-1", **failed)
    made = build(folder)
    said = page_text(made)
    assert "201 slower configurations are in summary.json." in said
    assert "10 more lines are in summary.json." in said
    assert "101 more trials are in summary.json." in said
    assert made.index.stat().st_size < 2_000_000
