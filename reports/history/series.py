"""Series over the runs of a folder: a configuration's speed, a training's held-out loss.

A point is compared with the one before it: speeds as `inv compare` does, losses over the held-out examples that both
adapters were checked on. In a series of at least MIN_RUNS speeds, all runs before a point are also compared with all
from it on, each run a unit: that finds smaller steps, and its noise is that between runs. The two kinds of test share
the significance level, and p values are multiplied by the number of compared runs and of series.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Literal

from bench.records import student
from bench.records.checksummed import ResultError
from bench.records.paths import RUN_FILE
from bench.records.run import RunRecord
from bench.records.training import TrainingRecord
from bench.records.trial import Trial
from reports.comparison import comparability
from reports.comparison.compare import compare
from reports.comparison.tests import ALPHA, STEP_METRICS
from reports.read.load import load
from reports.read.run import Rejected, ReportError, Run
from reports.summary.summarize import summarize
from reports.training import comparison as trainings
from reports.training import summary as training_summary

RATE = STEP_METRICS[-1]
MAX_RUNS = 100  # the newest; each is read in full
MIN_RUNS = 4  # two on either side of a step
MARKED = {"gpu": "GPU", "driver": "driver", "lock": "image"}  # conditions whose change is a mark
RESULTS_LOCK = "image (by its results)"  # instead of lock for a run that was not collected
Kind = Literal["speed", "loss"]
Step = tuple[float | None, str]  # in percent or None, with the reason for None


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run's value with its 95 % interval, and what changed since the point before.

    `changes` are sentences such as `driver: 550.54 to 580.95`. `step_percent` is the change of the value, against the
    point before or of all points from here on, if it is more than noise; else `why` gives the reason.
    """

    run_id: str
    created_at: str
    value: float
    low: float | None
    high: float | None
    changes: tuple[str, ...] = ()
    step_percent: float | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The points of one configuration or training, oldest first. `detail` tells series of one name apart."""

    name: str
    detail: str
    kind: Kind
    points: tuple[Point, ...]

    @property
    def unit(self) -> str:
        return "useful tokens/s per worker" if self.kind == "speed" else "nats per target token, held out"

    @property
    def steps(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if point.step_percent is not None)


@dataclass(frozen=True, kw_only=True)
class History:
    """All series, those with most points first. `rejected` runs could not be read; `omitted` older runs were not."""

    series: tuple[Series, ...]
    rejected: tuple[Rejected, ...]
    omitted: int


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A point with what its comparison needs: of a speed the loaded run and its label there; a training's folder."""

    point: Point
    conditions: Mapping[str, str]
    label: str = ""
    run: Run | None = None
    folder: Path | None = None


def read_history(results_folder: Path) -> History:
    """Read the newest runs of a folder. A run that cannot be read is rejected with the reason."""
    folders = sorted(
        {path.parent.resolve() for path in results_folder.glob(f"*/{RUN_FILE}")}, key=lambda folder: folder.name
    )
    rejected: list[Rejected] = []
    measured: dict[tuple[str, str, Kind], list[_Measured]] = {}
    run_ids: set[str] = set()
    for folder in folders[-MAX_RUNS:]:
        try:
            record = RunRecord.read(folder / RUN_FILE)
            if record.run_id in run_ids:
                raise ReportError(f"a copy of run {record.run_id}")
            run_ids.add(record.run_id)
            for key, point in _read_run(folder, record):
                measured.setdefault(key, []).append(point)
        except (ResultError, ReportError) as error:
            reason = str(error).removeprefix(f"{folder}/")
            rejected.append(Rejected(file=folder.name, reason=reason))
    compared = _Comparisons(measured.values())
    n_long = sum(len(points) >= MIN_RUNS for (_, _, kind), points in measured.items() if kind == "speed")
    series = [
        Series(name=name, detail=detail, kind=kind, points=_with_steps(kind, _with_changes(points, compared), n_long))
        for (name, detail, kind), points in measured.items()
    ]
    return History(
        series=tuple(sorted(series, key=lambda each: -len(each.points))),
        rejected=tuple(rejected),
        omitted=max(0, len(folders) - MAX_RUNS),
    )


def _read_run(folder: Path, record: RunRecord) -> Iterator[tuple[tuple[str, str, Kind], _Measured]]:
    if any(planned.trial.workload.is_compared for planned in record.planned):
        yield from _read_speeds(load(folder))
    elif len(record.planned) == 1 and record.planned[0].trial.workload.is_ranked:
        trial = record.planned[0].trial
        if trial.training is not None:
            yield from _read_training(folder, trial)


def _read_speeds(run: Run) -> Iterator[tuple[tuple[str, str, Kind], _Measured]]:
    read = comparability.read_conditions(run)
    # Without environment.json a run states its software in another form, which differs although nothing changed.
    conditions = {name: ", ".join(read.values[name]) for name in MARKED}
    if not read.is_complete:
        conditions[RESULTS_LOCK] = conditions.pop("lock")
    rows = summarize(run).rows
    if all(row.measured is None for row in rows):
        raise ReportError("no trial succeeded")
    for row in rows:
        if row.measured is None:
            continue
        rate = row.measured.useful_tokens_per_sec
        point = Point(
            run_id=run.record.run_id,
            created_at=run.record.created_at,
            value=rate.value,
            low=rate.low,
            high=rate.high,
        )
        key: tuple[str, str, Kind] = (row.trial.name, row.trial.digest()[:8], "speed")
        yield key, _Measured(point=point, label=row.label, conditions=conditions, run=run)


def _read_training(folder: Path, trial: Trial) -> Iterator[tuple[tuple[str, str, Kind], _Measured]]:
    report = training_summary.read(folder)
    evaluation = training_summary.adapter_evaluation(report.record)
    if evaluation is None or trial.training is None:
        return
    point = Point(
        run_id=report.run.run_id,
        created_at=report.run.created_at,
        value=evaluation.loss,
        low=evaluation.low,
        high=evaluation.high,
    )
    data = trial.training.data
    key: tuple[str, str, Kind] = (Path(trial.model).name, ", ".join(Path(file).name for file in data.files), "loss")
    yield key, _Measured(point=point, conditions=_training_conditions(report.record, trial), folder=folder)


def _training_conditions(record: TrainingRecord, trial: Trial) -> dict[str, str]:
    """Return the marked conditions of a training, and its settings, of which a change is a mark as well."""
    known = comparability.describe_conditions(record.fingerprint)
    plain = trial if trial.training is None else replace(trial, training=replace(trial.training, input_digests={}))
    return {name: known[name] for name in MARKED} | {"settings": plain.digest()[:8]}


class _Comparisons:
    """Comparisons of neighbouring runs, each pair once; p values are multiplied by `pairs`, their number."""

    def __init__(self, series: Iterable[Sequence[_Measured]]) -> None:
        self.pairs = len(
            {(before.point.run_id, after.point.run_id) for each in series for before, after in pairwise(each)}
        )
        self._steps: dict[tuple[str, str], Mapping[str, Step]] = {}

    def step(self, before: _Measured, after: _Measured) -> Step:
        """Return the step in percent, or None, and the reason."""
        if before.run is None or after.run is None:
            return _loss_step(before, after)
        key = (before.point.run_id, after.point.run_id)
        if key not in self._steps:
            self._steps[key] = self._speed_steps(before.run, after.run)
        return self._steps[key].get(before.label, (None, "not measured in both runs"))

    def _speed_steps(self, before: Run, after: Run) -> dict[str, Step]:
        """Map the first run's labels to their steps."""
        steps: dict[str, Step] = {}
        for row in compare([before, after], allow=comparability.NAMES).rows:
            if row.metric == RATE:
                is_step = row.p_corrected is not None and row.p_corrected * self.pairs < ALPHA / 2.0
                is_step = is_step and row.verdict in ("faster", "slower") and row.speed_ratio is not None
                steps[row.configuration] = (
                    (100.0 * ((row.speed_ratio or 1.0) - 1.0), "") if is_step else (None, row.why)
                )
        return steps


def _loss_step(before: _Measured, after: _Measured) -> Step:
    if before.folder is None or after.folder is None:
        return None, ""
    try:
        difference = trainings.compare(before.folder, after.folder)
    except ReportError as error:
        return None, str(error)
    if difference.low is None or difference.high is None or difference.low <= 0.0 <= difference.high:
        return None, "the losses are not shown to differ"
    return 100.0 * difference.change / before.point.value, ""


def _with_changes(points: Sequence[_Measured], compared: _Comparisons) -> Iterator[Point]:
    """Yield the points with their changes and steps against the point before."""
    yield points[0].point
    known = dict(points[0].conditions)
    for before, after in pairwise(points):
        percent, why = compared.step(before, after)
        changes = tuple(
            f"{MARKED.get(name, name)}: {known[name]} to {value}"
            for name, value in after.conditions.items()
            if known.get(name, value) != value
        )
        known |= after.conditions
        yield replace(after.point, changes=changes, step_percent=percent, why=why)


def _with_steps(kind: Kind, points: Iterable[Point], tests: int) -> tuple[Point, ...]:
    """Add the steps between the levels of many runs; `tests` is the number of series that are searched."""
    known = list(points)
    if kind == "speed":
        for position, percent in find_steps([math.log(point.value) for point in known], tests):
            if known[position].step_percent is None:
                known[position] = replace(known[position], step_percent=percent)
    return tuple(known)


def find_steps(logs: Sequence[float], tests: int = 1, first: int = 0) -> Iterator[tuple[int, float]]:
    """Yield where the level of logarithms changes, and by how many percent: the clearest position, then on either side.

    Student's t with the variance pooled over both sides, corrected (Bonferroni) for positions and for `tests`.
    """
    positions = range(2, len(logs) - 1)
    if not positions:
        return
    p, position, change = min(_level_change(logs, position) for position in positions)
    if p * len(positions) * tests < ALPHA / 2.0:
        yield first + position, 100.0 * math.expm1(change)
        yield from find_steps(logs[:position], tests, first)
        yield from find_steps(logs[position:], tests, first + position)


def _level_change(logs: Sequence[float], position: int) -> tuple[float, int, float]:
    """Return the p value of a change of the mean at `position`, the position, and the change."""
    logs = [log - logs[0] for log in logs]  # the means of equal values are then equal, too
    before, after = logs[:position], logs[position:]
    change = fmean(after) - fmean(before)
    squares = sum((log - fmean(side)) ** 2 for side in (before, after) for log in side)
    error = math.sqrt(squares / (len(logs) - 2) * (1.0 / len(before) + 1.0 / len(after)))
    p = student.two_sided_p(change / error, len(logs) - 2) if error else float(change == 0.0)
    return p, position, change
