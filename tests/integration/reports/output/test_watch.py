"""Tests of `inv report --follow`: updates as results arrive, and its end. Clock and sleep are simulated."""

import pytest

from reports.output import build as building
from reports.output.build import build
from reports.read.run import ReportError
from tests.support.reports import synthetic

pytestmark = pytest.mark.usefixtures("without_figures")
REFRESH_TAG = '<meta http-equiv="refresh"'


class GrowingRun:
    """A run in progress: each sleep of the watcher advances the clock and adds the next results."""

    def __init__(self, folder, *arrivals: int) -> None:
        self.folder, self.now = folder, 0.0
        self.record = synthetic.record(workers=2)
        self._plans = list(self.record.planned)
        self._arrivals = list(arrivals)
        self.versions: list[tuple[int, bool]] = []
        folder.mkdir(parents=True)
        self.record.write(folder)

    def arrive(self, count: int) -> None:
        for _ in range(count):
            synthetic.rewrite(self.folder, self._plans.pop(0), run_id=self.record.run_id)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.arrive(self._arrivals.pop(0) if self._arrivals else 0)

    def watch(self, **options):
        def on_update(progress: building.WatchProgress) -> None:
            page = (self.folder / "report" / "index.html").read_text()
            self.versions.append((progress.ended, REFRESH_TAG in page))

        build_report = options.pop("build", lambda refresh_sec: build(self.folder, refresh_sec=refresh_sec))
        return building.watch(self.folder, build_report, on_update, clock=lambda: self.now, sleep=self.sleep, **options)


def test_the_page_is_rebuilt_when_results_arrive_and_stops_reloading_with_the_last(folder):
    run = GrowingRun(folder, 1, 0, 2, 1)
    report = run.watch()
    assert run.versions == [(0, True), (1, True), (3, True), (4, False)]
    assert report.values.exit_code == 0
    assert "this run is not finished" not in report.index.read_text()


def test_a_finished_run_is_reported_once_and_a_damaged_plan_is_an_error(folder):
    run = GrowingRun(folder)
    run.arrive(4)
    run.watch()
    assert run.versions == [(4, False)]
    (folder / "run.json").write_text("{")
    with pytest.raises(ReportError, match=r"run\.json"):
        run.watch()
    assert run.versions == [(4, False)]


def test_a_rewritten_result_updates_the_page(folder):
    run = GrowingRun(folder, 0)
    run.arrive(3)

    def sleep(seconds):
        run.now += seconds
        synthetic.rewrite(folder, run.record.planned[0], run_id=run.record.run_id, step_time_sec=0.5)
        if len(run.versions) == 2:
            run.arrive(1)

    run.sleep = sleep
    run.watch()
    assert [ended for ended, _ in run.versions] == [3, 3, 4]


def test_a_stalled_run_is_given_up_after_its_longest_deadline_and_the_page_stops_reloading(folder):
    run = GrowingRun(folder, 3)
    with pytest.raises(building.StalledRun, match=r"1 of 4 .* 600 s"):
        run.watch()
    assert run.now > 300.0 + building.GRACE_SEC
    page = (folder / "report" / "index.html").read_text()
    assert REFRESH_TAG not in page
    assert "this run is not finished" not in page


def test_an_interrupted_watch_leaves_a_page_that_does_not_reload(folder):
    run = GrowingRun(folder)
    run.arrive(1)

    def interrupted(_):
        raise KeyboardInterrupt

    run.sleep = interrupted
    with pytest.raises(KeyboardInterrupt):
        run.watch()
    page = (folder / "report" / "index.html").read_text()
    assert REFRESH_TAG not in page
    assert page.endswith("</html>")


def test_a_report_that_cannot_be_made_ends_the_watch(folder):
    def broken(_refresh_sec):
        raise ReportError("no space left")

    with pytest.raises(ReportError, match="no space left"):
        GrowingRun(folder).watch(build=broken)
