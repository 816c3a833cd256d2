"""Comparison of later runs with earlier ones: which configurations became faster or slower, and how certain that is.

A configuration is compared if all runs planned the same trial (`Trial.digest`; equal names are not enough). With
several runs on a side the unit of repetition is a run: its day is in its value. With one run on each side it is a
worker or process, never a step, so a single process on either side is "unknown". If every worker has the same GPUs in
both runs, ratios are per worker, with each run's noise pooled over its configurations; else by Welch. `hypotheses`
determines the words. A training has two rates: the elapsed one, and the steady one, which few slow steps do not hide.

Not covered: memory and parts of a step (the reports show them), losses, and causes.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import Any

from bench.records import student
from bench.records.result import Measurement, TrialResult
from bench.records.status import ExitCode, Failure, TrialStatus
from bench.records.version import SCHEMA_VERSION, VERSION
from reports.comparison import comparability
from reports.comparison.comparability import ConditionDifference, Conditions
from reports.comparison.hypotheses import Hypothesis, VerdictLabel, judge
from reports.read import measurements
from reports.read.loaded_run import Configuration, Run
from reports.statistics import per_config
from reports.statistics.per_config import Mean, Sample
from reports.statistics.per_process import ProcessSteps, describe
from reports.statistics.pooling import Spread

RESOLUTION = 0.03  # a comparison that could not have shown 3 % does not call two runs the same
DAY_EFFECT_PERCENT = 1.0  # unless earlier runs show it; runs of equal code on one machine were 0.5 % apart
MIN_EARLIER_RUNS = 4  # from which on they show the effect of the day
ALLOW_UNKNOWN = "unknown"
ALLOWABLE = (*comparability.NAMES, ALLOW_UNKNOWN)
ELAPSED, STEADY = "elapsed_useful_tokens_per_sec", "steady_useful_tokens_per_sec"

Quantity = tuple[str, str]  # name, and context as JSON ("{}" for steps)
Values = dict[str, dict[Quantity, list[Sample]]]  # by digest of the trial


class CompareError(Failure, ValueError):
    """Raised if runs cannot be compared at all; the message names the run and the reason."""


@dataclass(frozen=True, kw_only=True)
class RunSide:
    """The value of a quantity in one or several runs, with the numbers of runs, workers and processes."""

    value: float
    n_runs: int
    n_workers: int
    n_processes: int


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    """One metric of one configuration in the later runs, against the earlier ones.

    `speed_ratio` is above 1 if the later are faster (for durations too); `low` and `high` are its 95 % interval, not
    widened for the other rows. `p_value` is before the correction for their number, `p_corrected` after it; both are
    None without a test. `shows_percent` is the smallest difference that this comparison could have detected at its rank
    in Holm's order, `day_percent` what the day may explain of it. `why` is the reason for `verdict`.
    """

    configuration: str
    kind: str
    metric: str
    context: Mapping[str, Any]
    before: RunSide | None = None
    after: RunSide | None = None
    speed_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    p_corrected: float | None = None
    shows_percent: float | None = None
    day_percent: float = 0.0
    verdict: VerdictLabel = "unknown"
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of comparing runs. `refused` are the `differences` that were not allowed; with any, there are no rows.

    `only_in` maps a run's id to the configurations that another run did not plan. `incomplete_runs` were not fully
    collected, so less is known of their conditions. `tolerance` is a fraction: 0.01 for 1 %.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    rows: tuple[ComparedRow, ...]
    differences: tuple[ConditionDifference, ...]
    refused: tuple[ConditionDifference, ...]
    allowed: tuple[str, ...]
    only_in: Mapping[str, tuple[str, ...]]
    rejected: Mapping[str, int]
    incomplete_runs: tuple[str, ...]
    tolerance: float

    @property
    def remedy(self) -> str:
        """The command to run if `refused` is not empty."""
        if self.incomplete_runs:
            first = " and ".join(f"`inv collect --run={run_id}`" for run_id in self.incomplete_runs)
            return f"run {first} first: the environment of its trials has not been fetched"
        names = ",".join(condition.name for condition in self.refused)
        return f"to compare anyway: `inv compare {','.join(self.before)} {','.join(self.after)} --allow={names}`"

    @property
    def slower(self) -> tuple[ComparedRow, ...]:
        """Rows that were shown to be slower by more than the tolerance."""
        limit = 1.0 - self.tolerance
        return tuple(row for row in self.rows if row.verdict == "slower" and (row.speed_ratio or 1.0) < limit)

    @property
    def undecided(self) -> tuple[ComparedRow, ...]:
        """Rows that are unknown, or slower in these runs but perhaps by the day.

        A few slow steps make every elapsed rate unknown; then the steady rate tells.
        """
        return tuple(
            row
            for row in self.rows
            if (row.verdict == "unknown" and row.metric != ELAPSED)
            or (row.verdict == "differs" and (row.speed_ratio or 1.0) < 1.0)
        )

    @property
    def exit_code(self) -> ExitCode:
        """OK if same or faster, FAILED if slower by more than the tolerance, BAD_INPUT if not comparable."""
        if self.refused or not self.rows:
            return ExitCode.BAD_INPUT
        if self.slower:
            return ExitCode.FAILED
        return ExitCode.UNDECIDED if self.undecided and ALLOW_UNKNOWN not in self.allowed else ExitCode.OK


def compare(
    before: Sequence[Run],
    after: Sequence[Run],
    *,
    allow: Iterable[str] = (),
    tolerance: float = 0.01,
    day_effect_percent: float = DAY_EFFECT_PERCENT,
    earlier: Sequence[Run] = (),
) -> Comparison:
    """Compare later runs with earlier ones; `earlier` are further runs that may show the effect of the day.

    Raises CompareError for a repeated run, and one whose conditions no successful trial reports.
    """
    runs = (*before, *after)
    ids = [run.record.run_id for run in runs]
    twice = [run_id for run_id, count in Counter(ids).items() if count > 1]
    if twice:
        raise CompareError(f"run {twice[0]} is named twice")
    allowed = tuple(dict.fromkeys(allow))
    conditions = [comparability.read_conditions(run) for run in runs]
    differences = comparability.find_differences(conditions)
    refused = tuple(difference for difference in differences if difference.name not in allowed)
    failed = [run for run in runs if all(each.status is not TrialStatus.SUCCEEDED for each in run.results)]
    if refused and failed:
        run_id = failed[0].record.run_id
        raise CompareError(f"run {run_id}: no trial succeeded", remedy=f"`inv report --run={run_id}` says why")
    rows: list[tuple[ComparedRow, Mean | None]] = []
    drift = 0.0  # a run that became slower may as a whole be slower than another
    if not refused:
        same_gpus = len(runs) == 2 and comparability.same_gpus(*conditions)
        measured = [_values(run) for run in runs]
        values, drift = [each for each, _ in measured], sum(half for _, half in measured)
        rows = _compare_all(values[: len(before)], values[len(before) :], runs, same_gpus)
    days: Mapping[str, float] = {}
    if len(runs) == 2:
        known = _day_effects(earlier, conditions[0])
        days = {
            row.configuration: known.get(row.configuration, day_effect_percent) + 100.0 * math.expm1(drift)
            for row, _ in rows
        }
    tested = [
        Hypothesis(mean=mean, day=math.log1p(days.get(row.configuration, 0.0) / 100.0))
        for row, mean in rows
        if mean is not None
    ]
    verdicts = iter(judge(tested, max(RESOLUTION, tolerance)))
    judged = [
        row if mean is None else replace(row, day_percent=days.get(row.configuration, 0.0), **asdict(next(verdicts)))
        for row, mean in rows
    ]
    worse = _worse_outcomes(before, after)
    planned = [_configurations(run) for run in runs]
    any_complete = any(each.is_complete for each in conditions)
    return Comparison(
        before=tuple(ids[: len(before)]),
        after=tuple(ids[len(before) :]),
        rows=tuple(_withhold(worse.get(row.configuration), row) for row in judged),
        differences=differences,
        refused=refused,
        allowed=allowed,
        only_in={
            run_id: tuple(each.label for digest, each in plan.items() if not all(digest in other for other in planned))
            for run_id, plan in zip(ids, planned, strict=True)
        },
        rejected={run.record.run_id: len(run.rejected) for run in runs if run.rejected},
        incomplete_runs=tuple(each.run_id for each in conditions if any_complete and not each.is_complete),
        tolerance=tolerance,
    )


def _configurations(run: Run) -> dict[str, Configuration]:
    """Map each planned trial's digest to its configuration."""
    return {each.planned[0].trial.digest(): each for each in run.configurations}


def _values(run: Run) -> tuple[Values, float]:
    """Return the speeds of a run's successful trials, and half the drift that its steps are shown to have."""
    values: Values = {}
    steps: dict[str, list[ProcessSteps]] = {}
    for result in run.results:
        if result.status is TrialStatus.SUCCEEDED:
            quantities, workload = values.setdefault(result.trial.digest(), {}), result.trial.workload
            if workload.is_compared:
                steps.setdefault(result.trial.digest(), []).append(ProcessSteps.from_result(result))
            elif workload.has_deciding_measurements:
                for quantity, sample in _measured(result):
                    quantities.setdefault(quantity, []).append(sample)
    described = {digest: describe(each) for digest, each in steps.items()}
    slope = per_config.fit_slope(described)
    drift = 0.0 if slope is None or slope.low <= 0.0 <= slope.high else abs(slope.change) / 2.0
    for digest, rate in per_config.combine_all(described).items():
        values[digest] = {(name, "{}"): per_config.samples(rate.processes, name) for name in (STEADY, ELAPSED)}
    return values, drift


def _measured(result: TrialResult) -> Iterable[tuple[Quantity, Sample]]:
    """Yield a trial's rates and durations; telemetry and a single rank's steps are not speeds of a configuration."""
    for measurement in result.measurements:
        is_speed = measurements.is_rate(measurement.name) or measurement.name.endswith("_sec")
        if not is_speed or measurement.value is None or measurement.value <= 0 or "rank" in measurement.context:
            continue
        if measurements.section_of(result.trial.kind, measurement) == measurements.TELEMETRY:
            continue
        # A context may hold computed results, such as a share: they differ between runs and identify nothing.
        context = {name: value for name, value in measurement.context.items() if not isinstance(value, float)}
        sample = Sample(result.worker or "unknown", math.log(measurement.value), _error(measurement))
        yield (measurement.name, measurements.context_json(context)), sample


def _error(measurement: Measurement) -> float:
    """Return the standard error implied by a measurement's interval."""
    spread = measurement.interval
    if spread is None or not 0 < spread.low <= spread.high:
        return 0.0
    return math.log(spread.high / spread.low) / (2.0 * per_config.NORMAL)


def _compare_all(
    before: Sequence[Values], after: Sequence[Values], runs: Sequence[Run], same_gpus: bool
) -> list[tuple[ComparedRow, Mean | None]]:
    """Compare each quantity of each configuration that all runs planned."""
    planned = [_configurations(run) for run in runs]
    shared = {
        digest: each
        for digest, each in planned[0].items()
        if all(digest in other for other in planned)
        if each.workload.is_compared or each.workload.has_deciding_measurements
    }
    pooled = (_noises(before[0]), _noises(after[0]))
    rows: list[tuple[ComparedRow, Mean | None]] = []
    for digest, configuration in shared.items():
        name = STEADY if configuration.workload.is_compared else configuration.workload.name
        blank = ComparedRow(
            configuration=configuration.label, kind=configuration.workload.name, metric=name, context={}
        )
        missing = [run for run, values in zip(runs, (*before, *after), strict=True) if not values.get(digest)]
        if missing:
            rows.append((replace(blank, why=f"none of its trials succeeded in {missing[0].record.run_id}"), None))
            continue
        for quantity in before[0][digest]:
            if not all(quantity in values[digest] for values in (*before, *after)):
                continue
            row = replace(blank, metric=quantity[0], context=json.loads(quantity[1]))
            sides = [[values[digest][quantity] for values in side] for side in (before, after)]
            noises = (pooled[0][quantity].get(digest), pooled[1][quantity].get(digest)) if same_gpus else (None, None)
            rows.append(_difference(row, sides[0], sides[1], noises, same_gpus))
    return rows


def _noises(values: Values) -> dict[Quantity, dict[str, Spread]]:
    """Map each quantity and digest to the noise of its units, pooled over the run's configurations."""
    quantities = dict.fromkeys(quantity for each in values.values() for quantity in each)
    return {
        quantity: per_config.spreads({digest: each[quantity] for digest, each in values.items() if quantity in each})
        for quantity in quantities
    }


def _difference(
    row: ComparedRow,
    before: Sequence[list[Sample]],
    after: Sequence[list[Sample]],
    noises: tuple[Spread | None, Spread | None],
    same_gpus: bool,
) -> tuple[ComparedRow, Mean | None]:
    """Fill a row from the samples of each run; the mean is None if they cannot be tested."""
    is_single = len(before) == len(after) == 1
    if is_single:
        mean = per_config.difference(after[0], before[0], same_workers=same_gpus, noises=noises)
    else:
        mean = per_config.difference_of_groups(*([_level(run) for run in side] for side in (after, before)))
    if not measurements.is_rate(row.metric):
        mean = replace(mean, value=-mean.value)  # durations: less is better
    row = replace(row, before=_side(before), after=_side(after), speed_ratio=math.exp(mean.value))
    if mean.half is not None:
        row = replace(row, low=math.exp(mean.value - mean.half), high=math.exp(mean.value + mean.half))
    if not is_single:
        return row, mean
    if min(len(before[0]), len(after[0])) < 2:
        return replace(row, why="a single process in a run cannot show how processes differ"), None
    is_one_worker = same_gpus and len({sample.worker for sample in (*before[0], *after[0])}) == 1
    if mean.df is None or (mean.over == "processes" and not is_one_worker):
        return replace(row, why="a single worker in a run cannot show how workers differ"), None
    return row, mean


def _level(run: list[Sample]) -> float:
    return per_config.mean_of_logs(run).value


def _side(runs: Sequence[list[Sample]]) -> RunSide:
    return RunSide(
        value=math.exp(fmean(map(_level, runs))),
        n_runs=len(runs),
        n_workers=len({sample.worker for samples in runs for sample in samples}),
        n_processes=sum(map(len, runs)),
    )


def _day_effects(earlier: Sequence[Run], conditions: Conditions) -> dict[str, float]:
    """Map a configuration to the percent by which two runs of equal code differ in 95 %, by the earlier runs.

    At least MIN_EARLIER_RUNS must have its trial under the same conditions. A difference of two runs has twice the
    variance of one: Student's t times the root of 2 times the deviation between runs.
    """
    logs: dict[str, list[float]] = {}
    for run in earlier:
        if not comparability.find_differences([conditions, comparability.read_conditions(run)]):
            planned = _configurations(run)
            for digest, quantities in _values(run)[0].items():
                if (STEADY, "{}") in quantities:
                    logs.setdefault(planned[digest].label, []).append(_level(quantities[STEADY, "{}"]))
    return {
        label: 100.0 * math.expm1(math.sqrt(2.0) * stdev(known) * student.quantile(0.95, len(known) - 1.0))
        for label, known in logs.items()
        if len(known) >= MIN_EARLIER_RUNS
    }


def _worse_outcomes(before: Sequence[Run], after: Sequence[Run]) -> dict[str, str]:
    """Map each configuration of which a larger share of trials failed to a sentence that says so."""
    planned = _configurations(before[0])
    both = [[result for run in side for result in run.results] for side in (before, after)]
    ends = [Counter((result.trial.digest(), result.status) for result in side) for side in both]
    trials = [Counter(result.trial.digest() for result in side) for side in both]
    return {
        planned[digest].label: f"{amount} of its trials ended {end.value} later, {ends[0][digest, end]} before"
        for (digest, end), amount in ends[1].items()
        if digest in planned and end.is_failure
        if amount * trials[0][digest] > ends[0][digest, end] * trials[1][digest]
    }


def _withhold(reason: str | None, row: ComparedRow) -> ComparedRow:
    """Replace "same" or "faster" by "unknown": the remaining trials' speed does not represent the configuration."""
    if reason is None or row.verdict not in ("same", "faster"):
        return row
    return replace(row, verdict="unknown", why=reason)


def to_json(comparison: Comparison) -> bytes:
    """Render compare.json, the comparison for programs; reports/README.md documents every field."""
    head = {"kind": "comparison", "schema_version": SCHEMA_VERSION, "version": VERSION}
    document = head | {"exit_code": comparison.exit_code} | asdict(comparison)
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
