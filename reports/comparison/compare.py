"""Two or more runs beside each other: which configuration became faster or slower, and how sure that is.

The first run is what the others are compared with. A configuration is compared where both runs planned the same trial
(`Trial.digest`, so equal names are not enough). A speed ratio is above 1 where the later run is faster; it is
taken over processes, never over steps: in a process, steps agree within 0.1 % where the next process is 0.7 % away. So
what was measured by a single process on a side is "unknown", and the noise that a verdict rests on is the measured one,
within and between processes.

Many comparisons find differences by chance. Their p values (Student's t on logarithms; worker by worker where every
worker has the very same GPUs in both runs, else Welch's) are corrected together by Holm's method, which keeps the
chance of a single false "faster" or "slower" in the whole table at 5 %. "same" wants more than no difference found: the
interval must also lie within 3 % of 1, or within the tolerance where that is wider; what is neither is "unknown".

In simulation (tests/unit/reports/comparison/test_compare_simulated.py): at most 5 % false alarms; and a slowdown of 3 %
is found in at least 90 % of runs with the default repeats (the quick suite, replicated on 4 workers) and 20 steps,
where processes are as alike as those measured on a GPU. Noisier ones need more workers; until then the word is
"unknown".

Not covered: memory and losses (the report shows them), and a cause: compare says that something changed, not what.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from bench.records.result import End, Measurement, TrialResult
from reports.comparison import conditions
from reports.comparison.conditions import Conditions, Unlike
from reports.read import measurements
from reports.read.run import KINDS_WITH_STEPS, Run
from reports.statistics import configurations, student
from reports.statistics.configurations import Mean, Sample
from reports.statistics.processes import ProcessSteps, describe

Word = Literal["faster", "same", "slower", "unknown"]
ALPHA = 0.05
RESOLUTION = 0.03  # a comparison that could not have shown 3 % does not call two runs the same
STEP_METRICS = ("samples_per_sec", "useful_tokens_per_sec")
ALLOW_UNKNOWN = "unknown"
ALLOWABLE = (*conditions.NAMES, ALLOW_UNKNOWN)


class CompareError(ValueError):
    """Runs that cannot be put beside each other at all; the message says which and why."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one run says of one quantity: the value, its 95 % interval, and over how many workers and processes.

    Noise is a standard deviation in percent: of steps within a process, and between processes, workers included; None
    where it could not be measured.
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

    `speed_ratio` is above 1 where `run_id` is faster, also for durations; `low` and `high` are its 95 % interval, not
    widened for the other rows. `p_value` is this row's own, `p_corrected` Holm's; both None where nothing was tested.
    `shows_percent` is the smallest difference that this comparison could have found at its place in Holm's order.
    `why` says what `verdict` rests on.
    """

    configuration: str
    kind: str
    metric: str
    context: str
    run_id: str
    before: Side | None
    after: Side | None
    speed_ratio: float | None
    low: float | None
    high: float | None
    p_value: float | None
    p_corrected: float | None
    shows_percent: float | None
    verdict: Word
    why: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs compared. `refused` are the unlike conditions that nobody allowed: with any, there are no rows.

    `only_in` maps a run's id to configurations that it alone planned; `half_known` are those of which less is known
    than of others, because they were not collected. `tolerance` is a share: 0.01 for 1 %.
    """

    run_ids: tuple[str, ...]
    rows: tuple[ComparedRow, ...]
    unlike: tuple[Unlike, ...]
    refused: tuple[Unlike, ...]
    allowed: tuple[str, ...]
    only_in: Mapping[str, tuple[str, ...]]
    rejected: Mapping[str, int]
    half_known: tuple[str, ...]
    tolerance: float

    @property
    def remedy(self) -> str:
        """What to type where `refused` is not empty."""
        if self.half_known:
            first = " and ".join(f"`inv collect --run={run_id}`" for run_id in self.half_known)
            return f"type {first} first: the environment of its trials has not been fetched"
        first, second, *others = self.run_ids
        also = "".join(f" --also={run_id}" for run_id in others)
        names = ",".join(one.name for one in self.refused)
        return f"if that is what you mean: `inv compare {first} {second}{also} --allow={names}`"

    @property
    def slower(self) -> tuple[ComparedRow, ...]:
        """Rows shown to be slower, by more than the tolerance."""
        return tuple(
            row
            for row in self.rows
            if row.verdict == "slower" and row.speed_ratio is not None and row.speed_ratio < 1.0 - self.tolerance
        )

    @property
    def unknown(self) -> tuple[ComparedRow, ...]:
        return tuple(row for row in self.rows if row.verdict == "unknown")

    @property
    def exit_code(self) -> int:
        """0 same or faster, 1 slower beyond the tolerance, 2 not comparable: refused, nothing in common, or unknown."""
        if self.refused or not self.rows:
            return 2
        if self.slower:
            return 1
        return 2 if self.unknown and ALLOW_UNKNOWN not in self.allowed else 0


def compare(runs: Sequence[Run], *, allow: Iterable[str] = (), tolerance: float = 0.01) -> Comparison:
    """Compare every later run with the first. Raises CompareError for fewer than two runs or one run twice."""
    ids = [run.record.run_id for run in runs]
    twice = [run_id for run_id, count in Counter(ids).items() if count > 1]
    if len(runs) < 2 or twice:
        raise CompareError(f"run {twice[0]} is named twice" if twice else "a comparison needs two runs")
    allowed = tuple(dict.fromkeys(allow))
    made_under = [conditions.conditions(run) for run in runs]
    found = conditions.unlike(made_under)
    refused = tuple(one for one in found if one.name not in allowed)
    plans = [_plans(run) for run in runs]
    return Comparison(
        run_ids=tuple(ids),
        rows=() if refused else tuple(_judge(list(_untested(runs, made_under)), tolerance)),
        unlike=found,
        refused=refused,
        allowed=allowed,
        only_in={
            run_id: tuple(label for digest, label in plan.items() if not any(digest in other for other in others))
            for run_id, plan, others in (
                (run_id, plans[at], plans[:at] + plans[at + 1 :]) for at, run_id in enumerate(ids)
            )
        },
        rejected={run.record.run_id: len(run.rejected) for run in runs if run.rejected},
        half_known=_half_known(made_under),
        tolerance=tolerance,
    )


def _half_known(made_under: Sequence[Conditions]) -> tuple[str, ...]:
    some_are_full = any(one.is_full for one in made_under)
    return tuple(one.run_id for one in made_under if some_are_full and not one.is_full)


@dataclass(frozen=True, kw_only=True)
class _Tested:
    """A row before its verdict, and the difference it rests on. Rows of one `family` are one test in two units."""

    row: ComparedRow
    mean: Mean | None
    family: tuple[str, ...]


def _plans(run: Run) -> dict[str, str]:
    """Digest of what was planned -> label."""
    return {one.planned[0].trial.digest(): one.label for one in run.configurations}


def _untested(runs: Sequence[Run], made_under: Sequence[Conditions]) -> Iterable[_Tested]:
    first, taken = runs[0], [_Taken.of(run) for run in runs]
    for run, there, under in zip(runs[1:], taken[1:], made_under[1:], strict=True):
        same_gpus = conditions.same_gpus(made_under[0], under)
        same_data = made_under[0].values["data"] == under.values["data"]
        planned = _plans(run)
        for digest, label in _plans(first).items():
            if digest not in planned:
                continue
            before, after = taken[0].by_digest.get(digest, {}), there.by_digest.get(digest, {})
            kind = next(one.kind for one in first.configurations if one.label == label)
            blank = ComparedRow(
                configuration=label, kind=kind, metric="", context="", run_id=run.record.run_id,
                before=None, after=None, speed_ratio=None, low=None, high=None, p_value=None, p_corrected=None,
                shows_percent=None, verdict="unknown", why="",
            )  # fmt: skip
            if not before or not after:
                where = first.record.run_id if not before else run.record.run_id
                metric = STEP_METRICS[-1] if kind in KINDS_WITH_STEPS else kind
                row = replace(blank, metric=metric, why=f"no trial of it succeeded in {where}")
                yield _Tested(row=row, mean=None, family=(run.record.run_id, label))
                continue
            for what in before:
                if what in after:
                    unit = "steps" if what[0] in STEP_METRICS and same_data else what[0]
                    yield _test(
                        replace(blank, metric=what[0], context=what[1]),
                        before[what],
                        after[what],
                        same_gpus=same_gpus,
                        family=(run.record.run_id, label, unit, what[1]),
                    )


def _test(
    row: ComparedRow, before: list[_Value], after: list[_Value], *, same_gpus: bool, family: tuple[str, ...]
) -> _Tested:
    old, new = [one.sample for one in before], [one.sample for one in after]
    mean = configurations.difference(new, old, same_workers=same_gpus)
    if not measurements.is_rate(row.metric):
        mean = replace(mean, value=-mean.value)  # of a duration, less is faster
    row = replace(row, before=_side(before), after=_side(after), speed_ratio=math.exp(mean.value))
    if mean.half is not None:
        row = replace(row, low=math.exp(mean.value - mean.half), high=math.exp(mean.value + mean.half))
    lonely = min(len(old), len(new)) < 2
    if lonely or mean.df is None or (mean.over == "processes" and not same_gpus):
        why = (
            "a single process on a side cannot show how processes differ"
            if lonely
            else "a single worker on a side cannot show how workers differ"
        )
        return _Tested(row=replace(row, why=why), mean=None, family=family)
    return _Tested(row=replace(row, p_value=_p_value(mean)), mean=mean, family=family)


def _p_value(mean: Mean) -> float:
    """Two-sided, Student's; never surer than the noise of the steps alone allows."""
    if mean.value == 0.0:
        return 1.0
    by_units = 0.0 if mean.error == 0.0 else student.two_sided_p(mean.value / mean.error, mean.df or 1.0)
    by_steps = 0.0 if mean.floor == 0.0 else math.erfc(abs(mean.value / mean.floor) / math.sqrt(2.0))
    return max(by_units, by_steps)


def _judge(tested: list[_Tested], tolerance: float) -> Iterable[ComparedRow]:
    """Holm over families: the smallest p is held against ALPHA over all of them, the next against one fewer."""
    own: dict[tuple[str, ...], float] = {}
    for one in tested:
        if one.row.p_value is not None:
            own[one.family] = max(own.get(one.family, 0.0), one.row.p_value)
    corrected: dict[tuple[str, ...], float] = {}
    levels: dict[tuple[str, ...], float] = {}
    largest = 0.0
    for rank, (family, p) in enumerate(sorted(own.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(own) - rank)))
        corrected[family], levels[family] = largest, ALPHA / (len(own) - rank)
    for one in tested:
        if one.mean is None:
            yield one.row
            continue
        row = replace(
            one.row,
            p_corrected=corrected[one.family],
            shows_percent=100.0 * math.expm1(_half(one.mean, levels[one.family])),
        )
        yield replace(row, **_verdict(row, max(RESOLUTION, tolerance)))


def _half(mean: Mean, level: float) -> float:
    """Half the width of the interval that misses the truth at this level."""
    return max(mean.error * student.quantile(1.0 - level, round(mean.df or 1.0, 2)), mean.floor * configurations.NORMAL)


def _verdict(row: ComparedRow, within: float) -> dict[str, Any]:
    ratio, low, high, p = row.speed_ratio, row.low, row.high, row.p_corrected
    if ratio is None or low is None or high is None or p is None:
        raise ValueError(f"{row.configuration}: {row.metric}: a verdict needs a test")
    if p < ALPHA:
        word: Word = "faster" if ratio > 1.0 else "slower"
        return {"verdict": word, "why": f"p = {p:.2g} after correction for {row.metric} among all comparisons"}
    if low > 1.0 - within and high < 1.0 + within:
        return {"verdict": "same", "why": f"the interval is within {100 * within:g} % of 1"}
    return {"verdict": "unknown", "why": f"too noisy to show a difference below {row.shows_percent:.2g} %"}


@dataclass(frozen=True, kw_only=True)
class _Value:
    """One process's value of one quantity."""

    sample: Sample
    steps_noise_percent: float | None


_What = tuple[str, str]  # a quantity's name, and its context as JSON; empty for steps


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """What a run's successful trials say: digest -> quantity -> processes."""

    by_digest: dict[str, dict[_What, list[_Value]]]

    @classmethod
    def of(cls, run: Run) -> _Taken:
        good = [one for one in run.results if one.status is End.SUCCEEDED]
        found: dict[str, dict[_What, list[_Value]]] = {}
        with_steps = [one for one in good if one.trial.kind in KINDS_WITH_STEPS]
        for result, process in zip(with_steps, describe([ProcessSteps.of(one) for one in with_steps]), strict=True):
            quantities = found.setdefault(result.trial.digest(), {})
            for name in STEP_METRICS:
                (sample,) = configurations.samples([process], name)
                quantities.setdefault((name, ""), []).append(
                    _Value(sample=sample, steps_noise_percent=process.noise_percent)
                )
        for result in good:
            quantities = found.setdefault(result.trial.digest(), {})
            for what, value in _measured(result):
                quantities.setdefault(what, []).append(value)
        return cls(by_digest=found)


def _measured(result: TrialResult) -> Iterable[tuple[_What, _Value]]:
    """Rates and durations of a trial; what telemetry saw, and a rank's own step, are not speeds of a configuration."""
    for one in result.measurements:
        is_speed = measurements.is_rate(one.name) or one.name.endswith("_sec")
        if not is_speed or one.value is None or one.value <= 0 or "rank" in one.context:
            continue
        if measurements.section_of(result.trial.kind, one) == measurements.TELEMETRY:
            continue
        # A context may hold results of its own (a share that was computed): those never agree, and name nothing.
        context = {name: value for name, value in one.context.items() if not isinstance(value, float)}
        error, noise = _error(one)
        sample = Sample(worker=result.worker or "unknown", log=math.log(one.value), error=error)
        yield (
            (one.name, measurements.as_json(context) if context else ""),
            _Value(sample=sample, steps_noise_percent=noise),
        )


def _error(one: Measurement) -> tuple[float, float | None]:
    """The standard error that a measurement's own interval tells, and its repeats' spread in percent."""
    spread = one.interval
    if spread is None or not 0 < spread.low <= spread.high:
        return 0.0, None
    noise = 100.0 * (spread.p90 - spread.p10) / 2.563 / spread.median if spread.median > 0 else None
    return math.log(spread.high / spread.low) / (2.0 * configurations.NORMAL), noise


def _side(values: Sequence[_Value]) -> Side:
    mean = configurations.mean_of_logs([one.sample for one in values])
    value, half = math.exp(mean.value), mean.half
    noises = sorted(one.steps_noise_percent for one in values if one.steps_noise_percent is not None)
    between = None if mean.df is None else 100.0 * math.expm1(mean.error * math.sqrt(mean.units))
    return Side(
        value=value,
        low=None if half is None else value * math.exp(-half),
        high=None if half is None else value * math.exp(half),
        n_workers=len({one.sample.worker for one in values}),
        n_processes=len(values),
        steps_noise_percent=noises[len(noises) // 2] if noises else None,
        processes_noise_percent=between,
    )
