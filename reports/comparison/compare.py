"""Comparison of later runs with a first run: which configurations became faster or slower, and how certain that is.

A configuration is compared if both runs planned the same trial (`Trial.digest`; equal names are not enough). A speed
ratio above 1 means that the later run is faster. It is computed over processes, never over steps: steps within a
process agree within 0.1 % although the next process is 0.7 % away. So a configuration with a single process on either
side is "unknown". If every worker has the same GPUs in both runs, ratios are computed per worker, and the noise of
these differences is pooled over all configurations; else each configuration gets its own Welch's test. `tests` corrects
for the number of comparisons and determines the verdicts.

A row over all configurations says whether the run as a whole became faster or slower. Runs of the same code differ too:
0.5 % between runs makes 15 % of equal runs look different. Only a repetition of the older run can detect that.

Not covered: memory and losses (the report shows them), and causes: compare reports that something changed, not what.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median, median_high
from typing import Any

from bench.records.status import ExitCode, Failure, TrialStatus
from bench.records.version import SCHEMA_VERSION, VERSION
from bench.records.workloads import WORKLOADS
from reports.comparison import comparability
from reports.comparison.comparability import ConditionDifference, Conditions
from reports.comparison.tests import (
    MAX_USEFUL_PERCENT,
    SPEED,
    STEP_METRICS,
    Hypothesis,
    Quantity,
    SampleSet,
    Value,
    VerdictLabel,
    family_of,
    judge,
)
from reports.read import measurements
from reports.read.run import Run
from reports.statistics import per_config, pooling
from reports.statistics.per_config import Mean, Sample, mean_by_worker
from reports.statistics.pooling import Spread

RESOLUTION = 0.03  # a comparison that could not have shown 3 % does not call two runs the same
ALLOW_UNKNOWN = "unknown"
# No two runs of the same configuration on different days were kept, so the effect of the day is not known.
ASSUMED_DAY_EFFECT_PERCENT = 0.0
ALLOWABLE = (*comparability.NAMES, ALLOW_UNKNOWN)


class CompareError(Failure, ValueError):
    """Raised if runs cannot be compared at all; the message names the run and the reason."""


@dataclass(frozen=True, kw_only=True)
class RunSide:
    """One run's value of a quantity, with its 95 % interval and the numbers of workers and processes.

    Noise is a standard deviation in percent: of steps within a process, and between processes (including workers);
    None if it could not be measured.
    """

    value: float
    low: float | None
    high: float | None
    n_workers: int
    n_processes: int
    steps_noise_percent: float | None
    processes_noise_percent: float | None


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    """One metric of one configuration in one later run, against the first run.

    `speed_ratio` is above 1 if `run_id` is faster (for durations too) or takes less energy; `low` and `high` are its
    95 % interval, not widened for the other rows. Rows of one `family` are corrected together; `p_value` is before that
    correction, `p_corrected` after it; both are None without a test. `shows_percent` is the smallest difference that
    this comparison could have detected at its rank in Holm's order. `why` is the reason for `verdict`.
    """

    configuration: str
    kind: str
    metric: str
    context: str
    run_id: str
    family: str
    before: RunSide | None = None
    after: RunSide | None = None
    speed_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    p_corrected: float | None = None
    shows_percent: float | None = None
    verdict: VerdictLabel
    why: str

    @property
    def decides(self) -> bool:
        """True if the exit code depends on this row; parts of a step and energy only explain."""
        return self.family == SPEED or (self.family in WORKLOADS and WORKLOADS[self.family].has_deciding_measurements)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of comparing runs. `refused` are the `differences` that were not allowed; with any, there are no rows.

    `over_all` has a row over all configurations for each later run in which at least two can be combined. `only_in`
    maps a run's id to the configurations that no other run planned. `incomplete_runs` were not fully collected, so less
    is known of their conditions. `tolerance` is a fraction: 0.01 for 1 %.
    """

    run_ids: tuple[str, ...]
    rows: tuple[ComparedRow, ...]
    over_all: tuple[ComparedRow, ...]
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
        first, second, *others = self.run_ids
        also = "".join(f" --also={run_id}" for run_id in others)
        names = ",".join(condition.name for condition in self.refused)
        return f"to compare anyway: `inv compare {first} {second}{also} --allow={names}`"

    @property
    def power_note(self) -> str | None:
        """The changes that half of such comparisons find, and the assumed effect of the day; None without tests."""
        missed = [
            f"{f'{percent:.2g}' if percent <= MAX_USEFUL_PERCENT else 'more than 100'} % of {subject}"
            for rows, subject in ((self.rows, "one configuration"), (self.over_all, "all together"))
            if (percent := _median_shown(rows)) is not None
        ]
        if not missed:
            return None
        power = f"Half of such comparisons would miss a change of {' or '.join(missed)}."
        return f"{power} The effect of the day is assumed to be {ASSUMED_DAY_EFFECT_PERCENT:g} %."

    @property
    def slower(self) -> tuple[ComparedRow, ...]:
        """Rows that were shown to be slower by more than the tolerance."""
        return tuple(
            row
            for row in (*self.rows, *self.over_all)
            if row.decides
            and row.verdict == "slower"
            and row.speed_ratio is not None
            and row.speed_ratio < 1.0 - self.tolerance
        )

    @property
    def unknown(self) -> tuple[ComparedRow, ...]:
        return tuple(row for row in self.rows if row.decides and row.verdict == "unknown")

    @property
    def exit_code(self) -> ExitCode:
        """OK if same or faster, FAILED if slower by more than the tolerance, BAD_INPUT if not comparable."""
        if self.refused or not self.rows:
            return ExitCode.BAD_INPUT
        if self.slower:
            return ExitCode.FAILED
        return ExitCode.UNDECIDED if self.unknown and ALLOW_UNKNOWN not in self.allowed else ExitCode.OK


def _median_shown(rows: Iterable[ComparedRow]) -> float | None:
    """Return the median of the smallest useful tokens' change that the rows could have shown."""
    shown = [row.shows_percent for row in rows if row.metric == STEP_METRICS[-1] and row.shows_percent is not None]
    return median(shown) if shown else None


def compare(runs: Sequence[Run], *, allow: Iterable[str] = (), tolerance: float = 0.01) -> Comparison:
    """Compare every later run with the first.

    Raises CompareError for fewer than two runs, a repeated run, and one whose conditions no successful trial reports.
    """
    ids = [run.record.run_id for run in runs]
    twice = [run_id for run_id, count in Counter(ids).items() if count > 1]
    if len(runs) < 2 or twice:
        raise CompareError(f"run {twice[0]} is named twice" if twice else "a comparison needs two runs")
    allowed = tuple(dict.fromkeys(allow))
    conditions = [comparability.read_conditions(run) for run in runs]
    differences = comparability.find_differences(conditions)
    refused = tuple(difference for difference in differences if difference.name not in allowed)
    failed = [
        run.record.run_id for run in runs if all(each.status is not TrialStatus.SUCCEEDED for each in run.results)
    ]
    if refused and failed:
        raise CompareError(f"run {failed[0]}: no trial succeeded", remedy=f"`inv report --run={failed[0]}` says why")
    plans = [_label_by_digest(run) for run in runs]
    any_is_complete = any(condition.is_complete for condition in conditions)
    rows, over_all = ((), ()) if refused else _compare_all(runs, conditions, tolerance)
    return Comparison(
        run_ids=tuple(ids),
        rows=rows,
        over_all=over_all,
        differences=differences,
        refused=refused,
        allowed=allowed,
        only_in={
            run_id: tuple(label for digest, label in plan.items() if not any(digest in other for other in others))
            for run_id, plan, others in (
                (run_id, plans[index], plans[:index] + plans[index + 1 :]) for index, run_id in enumerate(ids)
            )
        },
        rejected={run.record.run_id: len(run.rejected) for run in runs if run.rejected},
        incomplete_runs=tuple(
            condition.run_id for condition in conditions if any_is_complete and not condition.is_complete
        ),
        tolerance=tolerance,
    )


def _label_by_digest(run: Run) -> dict[str, str]:
    """Map each planned trial's digest to its configuration's label."""
    return {configuration.planned[0].trial.digest(): configuration.label for configuration in run.configurations}


_RowsWithMeans = list[tuple[ComparedRow, Mean | None]]
_JudgedRows = tuple[ComparedRow, ...]


def _compare_all(
    runs: Sequence[Run], conditions: Sequence[Conditions], tolerance: float
) -> tuple[_JudgedRows, _JudgedRows]:
    """Return the rows of every later run, and one overall row for each later run; all are judged together."""
    first, sample_sets = runs[0], [SampleSet.from_run(run) for run in runs]
    rows: _RowsWithMeans = []
    over_all: _RowsWithMeans = []
    for run, samples, run_conditions in zip(runs[1:], sample_sets[1:], conditions[1:], strict=True):
        same_gpus = comparability.same_gpus(conditions[0], run_conditions)
        blanks = _blank_rows(first, run, sample_sets[0], samples)
        run_rows = _compare_configurations(blanks, sample_sets[0], samples, same_gpus=same_gpus)
        rows += run_rows
        over_all += _overall_row(run_rows, blanks, sample_sets[0], samples, same_gpus=same_gpus)
    same_data = len({condition.values["data"] for condition in conditions}) == 1
    hypotheses = [
        None if mean is None else Hypothesis(mean=mean, family=row.family, test=_test_key(row, same_data=same_data))
        for row, mean in (*rows, *over_all)
    ]
    tested = [hypothesis for hypothesis in hypotheses if hypothesis is not None]
    verdicts = iter(judge(tested, max(RESOLUTION, tolerance)))
    judged = tuple(row if mean is None else replace(row, **asdict(next(verdicts))) for row, mean in (*rows, *over_all))
    worse = {run.record.run_id: _worse_outcomes(first, run) for run in runs[1:]}
    checked = tuple(_withhold_verdict(worse[row.run_id].get(row.configuration), row) for row in judged[: len(rows)])
    return checked, judged[len(rows) :]


def _worse_outcomes(first: Run, run: Run) -> dict[str, str]:
    """Map each configuration of which more trials failed, timed out or ran out of memory to a sentence that says so."""
    planned = _label_by_digest(first)
    before, after = (
        Counter((planned.get(result.trial.digest()), result.status) for result in each.results) for each in (first, run)
    )
    return {
        label: f"{amount} of its trials ended {end.value} in {run.record.run_id}, {before[label, end]} before"
        for (label, end), amount in after.items()
        if label is not None and end.is_failure and amount > before[label, end]
    }


def _withhold_verdict(reason: str | None, row: ComparedRow) -> ComparedRow:
    """Replace "same" or "faster" by "unknown": the remaining trials' speed does not represent the configuration."""
    if reason is None or row.verdict not in ("same", "faster"):
        return row
    return replace(row, verdict="unknown", why=reason)


def _test_key(row: ComparedRow, *, same_data: bool) -> tuple[str, ...]:
    """Identify the test of a row; samples and useful tokens of the same data are one test in two units."""
    unit = "steps" if row.metric in STEP_METRICS and same_data else row.metric
    return (row.run_id, row.configuration, unit, row.context)


def _blank_rows(first: Run, run: Run, old: SampleSet, new: SampleSet) -> dict[str, ComparedRow]:
    """Map the digest of each trial that both runs planned to a row without values."""
    planned = _label_by_digest(run)
    workloads = {configuration.label: configuration.workload for configuration in first.configurations}
    rows = {}
    for digest, label in _label_by_digest(first).items():
        if digest not in planned:
            continue
        workload = workloads[label]
        sides = ((first, old), (run, new))
        missing = [side.record.run_id for side, samples in sides if not samples.by_digest.get(digest)]
        metric = STEP_METRICS[-1] if workload.has_steps else workload.name
        rows[digest] = ComparedRow(
            configuration=label, kind=workload.name, metric=metric, context="", run_id=run.record.run_id,
            family=family_of(workload, metric), verdict="unknown",
            why=f"none of its trials succeeded in {missing[0]}" if missing else "",
        )  # fmt: skip
    return rows


def _compare_configurations(
    blanks: Mapping[str, ComparedRow], old: SampleSet, new: SampleSet, *, same_gpus: bool
) -> _RowsWithMeans:
    noises: dict[Quantity, dict[str, Spread]] = {}
    rows: _RowsWithMeans = []
    for digest, blank in blanks.items():
        before, after = old.by_digest.get(digest, {}), new.by_digest.get(digest, {})
        if not before or not after:
            rows.append((blank, None))
            continue
        for quantity in before:
            if quantity not in after:
                continue
            if quantity not in noises:
                noises[quantity] = _paired_noise(quantity, blanks, old, new) if same_gpus else {}
            noise = noises[quantity].get(digest)
            row = replace(
                blank, metric=quantity[0], context=quantity[1], family=family_of(WORKLOADS[blank.kind], quantity[0])
            )
            rows.append(_difference(row, before[quantity], after[quantity], noise, same_gpus=same_gpus))
    return rows


def _paired_noise(quantity: Quantity, blanks: Iterable[str], old: SampleSet, new: SampleSet) -> dict[str, Spread]:
    """Map each digest to the noise of a quantity's difference on one worker, pooled over configurations."""
    before, after = (
        {
            digest: mean_by_worker(value.sample for value in samples.by_digest.get(digest, {}).get(quantity, ()))
            for digest in blanks
        }
        for samples in (old, new)
    )
    return pooling.difference_spreads(before, after)


def _difference(
    row: ComparedRow, before: list[Value], after: list[Value], noise: Spread | None, *, same_gpus: bool
) -> tuple[ComparedRow, Mean | None]:
    old, new = [value.sample for value in before], [value.sample for value in after]
    mean = per_config.difference(new, old, same_workers=same_gpus, paired_noise=noise)
    if not measurements.is_rate(row.metric):
        mean = replace(mean, value=-mean.value)  # durations and energies: less is better
    row = replace(row, before=_run_side(before), after=_run_side(after), speed_ratio=math.exp(mean.value))
    if mean.half is not None:
        row = replace(row, low=math.exp(mean.value - mean.half), high=math.exp(mean.value + mean.half))
    is_single_process = min(len(old), len(new)) < 2
    is_one_worker = same_gpus and len({sample.worker for sample in (*old, *new)}) == 1
    if is_single_process or mean.df is None or (mean.over == "processes" and not is_one_worker):
        why = (
            "a single process in a run cannot show how processes differ"
            if is_single_process
            else "a single worker in a run cannot show how workers differ"
        )
        return replace(row, why=why), None
    return row, mean


def _overall_row(
    rows: _RowsWithMeans, blanks: Mapping[str, ComparedRow], old: SampleSet, new: SampleSet, *, same_gpus: bool
) -> _RowsWithMeans:
    """Return a row over the configurations that every worker of both runs ran; [] with fewer than two of them."""
    metric = STEP_METRICS[-1]
    tested = {row.configuration for row, mean in rows if row.metric == metric and mean is not None}
    sides = []
    for samples in (old, new):
        logs = {
            digest: mean_by_worker(value.sample for value in samples.by_digest[digest][metric, ""])
            for digest, row in blanks.items()
            if row.configuration in tested
        }
        sides.append(logs)
    whole = [
        digest
        for digest in sides[0]
        if all(
            len(side[digest]) == len({worker for by_worker_logs in side.values() for worker in by_worker_logs})
            for side in sides
        )
    ]
    if len(whole) < 2:
        return []
    values = [
        [
            Value(
                sample=Sample(
                    worker=worker, log=math.fsum(side[digest][worker] for digest in whole) / len(whole), error=0.0
                ),
                steps_noise_percent=None,
            )
            for worker in side[whole[0]]
        ]
        for side in sides
    ]
    blank = replace(blanks[whole[0]], configuration=f"all {len(whole)} configurations", metric=metric, why="")
    return [_difference(replace(blank, family=SPEED), values[0], values[1], None, same_gpus=same_gpus)]


def _run_side(values: Sequence[Value]) -> RunSide:
    mean = per_config.mean_of_logs([value.sample for value in values])
    value, low, high = mean.value_and_interval
    noises = [value.steps_noise_percent for value in values if value.steps_noise_percent is not None]
    between = None if mean.df is None else 100.0 * math.expm1(mean.error * math.sqrt(mean.units))
    return RunSide(
        value=value,
        low=low,
        high=high,
        n_workers=len({value.sample.worker for value in values}),
        n_processes=len(values),
        steps_noise_percent=median_high(noises) if noises else None,
        processes_noise_percent=between,
    )


def to_json(comparison: Comparison) -> bytes:
    """Render compare.json, the comparison for programs; reports/README.md documents every field."""
    document = {
        "kind": "comparison",
        "schema_version": SCHEMA_VERSION,
        "version": VERSION,
        "runs": list(comparison.run_ids),
        "tolerance_percent": 100.0 * comparison.tolerance,
        "exit_code": comparison.exit_code,
        "assumed_day_effect_percent": ASSUMED_DAY_EFFECT_PERCENT,
        "allowed": list(comparison.allowed),
        "unlike": [
            {
                "name": difference.name,
                "refused": difference in comparison.refused,
                "values": {run: list(values) for run, values in difference.values},
            }
            for difference in comparison.differences
        ],
        "only_in": {run_id: list(labels) for run_id, labels in comparison.only_in.items() if labels},
        "rejected_files": dict(comparison.rejected),
        "over_all": [_row_json(row) for row in comparison.over_all],
        "rows": [_row_json(row) for row in comparison.rows],
    }
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _row_json(row: ComparedRow) -> dict[str, Any]:
    flat = asdict(row)
    sides = {name: flat.pop(name) for name in ("before", "after")}
    context = flat.pop("context")
    return flat | sides | {"context": json.loads(context) if context else {}}
