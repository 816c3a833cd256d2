"""Two or more runs beside each other: which configuration became faster or slower, and how sure that is.

The first run is what the others are compared with. A configuration is compared where both runs planned the same trial
(`Trial.digest`, so equal names are not enough). A speed ratio is above 1 where the later run is faster; it is
taken over processes, never over steps: in a process, steps agree within 0.1 % where the next process is 0.7 % away. So
what was measured by a single process on a side is "unknown". Where every worker has the very same GPUs in both runs, a
ratio is taken worker by worker, and how much such differences vary is taken from all configurations together; else each
configuration has its own Welch's test. `verdicts` corrects for how many there are and finds the words.

A row over all configurations says whether the whole run became faster or slower. Runs of the same code differ, too:
0.5 % between runs makes 27 % of equal runs look different, and only a repeat of the older run can tell.

Not covered: memory and losses (the report shows them), and a cause: compare says that something changed, not what.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median_high

from bench.records.result import TrialStatus
from reports.comparison import comparability
from reports.comparison.comparability import ConditionDifference, Conditions
from reports.comparison.samples import STEP_METRICS, SampleSet, Value, What
from reports.comparison.tests import DECIDING, Hypothesis, Word, family_of, judge
from reports.read import measurements
from reports.read.run import KINDS_WITH_STEPS, Run
from reports.statistics import per_config, pooling
from reports.statistics.per_config import Mean, Sample, by_worker
from reports.statistics.pooling import Spread

RESOLUTION = 0.03  # a comparison that could not have shown 3 % does not call two runs the same
ALLOW_UNKNOWN = "unknown"
ALLOWABLE = (*comparability.NAMES, ALLOW_UNKNOWN)


class CompareError(ValueError):
    """Runs that cannot be put beside each other at all; the message says which and why."""


@dataclass(frozen=True, kw_only=True)
class RunSide:
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

    `speed_ratio` is above 1 where `run_id` is faster, also for durations, or takes less energy; `low` and `high` are
    its 95 % interval, not widened for the other rows. `family` are the rows that are corrected together; `p_value` is
    this row's own, `p_corrected` after that; both None where nothing was tested. `shows_percent` is the smallest
    difference that this comparison could have found at its place in Holm's order. `why` says what `verdict` rests on.
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
    verdict: Word
    why: str

    @property
    def decides(self) -> bool:
        """True where the exit code counts it: parts of a step and energy explain, they do not decide."""
        return self.family in DECIDING


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs compared. `refused` are the unlike conditions that nobody allowed: with any, there are no rows. `over_all`
    has a row for each later run, over all its configurations; none where fewer than two can be put together.

    `only_in` maps a run's id to configurations that it alone planned; `half_known` are those of which less is known
    than of others, because they were not collected. `tolerance` is a share: 0.01 for 1 %.
    """

    run_ids: tuple[str, ...]
    rows: tuple[ComparedRow, ...]
    over_all: tuple[ComparedRow, ...]
    unlike: tuple[ConditionDifference, ...]
    refused: tuple[ConditionDifference, ...]
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
    made_under = [comparability.conditions(run) for run in runs]
    found = comparability.unlike(made_under)
    refused = tuple(one for one in found if one.name not in allowed)
    plans = [_plans(run) for run in runs]
    any_is_full = any(one.is_full for one in made_under)
    rows, over_all = ((), ()) if refused else _rows(runs, made_under, tolerance)
    return Comparison(
        run_ids=tuple(ids),
        rows=rows,
        over_all=over_all,
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
        half_known=tuple(one.run_id for one in made_under if any_is_full and not one.is_full),
        tolerance=tolerance,
    )


def _plans(run: Run) -> dict[str, str]:
    """Digest of what was planned -> label."""
    return {configuration.planned[0].trial.digest(): configuration.label for configuration in run.configurations}


_Rows = list[tuple[ComparedRow, Mean | None]]
_Judged = tuple[ComparedRow, ...]


def _rows(runs: Sequence[Run], made_under: Sequence[Conditions], tolerance: float) -> tuple[_Judged, _Judged]:
    """The rows of every later run, and a row a later run over all of its configurations, judged together."""
    first, taken = runs[0], [SampleSet.of(run) for run in runs]
    rows: _Rows = []
    over_all: _Rows = []
    for run, there, under in zip(runs[1:], taken[1:], made_under[1:], strict=True):
        same_gpus = comparability.same_gpus(made_under[0], under)
        blanks = _blanks(first, run, taken[0], there)
        own = _against(blanks, taken[0], there, same_gpus=same_gpus)
        rows += own
        over_all += _over_all(own, blanks, taken[0], there, same_gpus=same_gpus)
    same_data = len({one.values["data"] for one in made_under}) == 1
    asked = [
        None if mean is None else Hypothesis(mean=mean, family=row.family, test=_test_of(row, same_data=same_data))
        for row, mean in (*rows, *over_all)
    ]
    answers = judge([one for one in asked if one is not None], max(RESOLUTION, tolerance))
    told = iter(answers)
    found = tuple(row if mean is None else replace(row, **asdict(next(told))) for row, mean in (*rows, *over_all))
    broke = {run.record.run_id: _broke(first, run) for run in runs[1:]}
    passing = tuple(_unless(broke[row.run_id].get(row.configuration), row) for row in found[: len(rows)])
    return passing, found[len(rows) :]


def _broke(first: Run, run: Run) -> dict[str, str]:
    """Configuration to why it is worse: more trials than in the first run ran out of memory, failed or timed out."""
    planned = _plans(first)
    before, after = (
        Counter((planned.get(result.trial.digest()), result.status) for result in each.results) for each in (first, run)
    )
    return {
        label: f"{amount} of its trials ended {end.value} in {run.record.run_id}, {before[label, end]} before"
        for (label, end), amount in after.items()
        if label is not None
        and end is not TrialStatus.SUCCEEDED
        and not end.is_resumable
        and amount > before[label, end]
    }


def _unless(broke: str | None, row: ComparedRow) -> ComparedRow:
    """The speed of the trials that are left does not stand for the configuration."""
    if broke is None or row.verdict not in ("same", "faster"):
        return row
    return replace(row, verdict="unknown", why=broke)


def _test_of(row: ComparedRow, *, same_data: bool) -> tuple[str, ...]:
    """Samples and useful tokens of the same data are one test in two units."""
    unit = "steps" if row.metric in STEP_METRICS and same_data else row.metric
    return (row.run_id, row.configuration, unit, row.context)


def _blanks(first: Run, run: Run, old: SampleSet, new: SampleSet) -> dict[str, ComparedRow]:
    """Digest of what both runs planned to a row that says nothing yet."""
    planned, kinds = _plans(run), {configuration.label: configuration.kind for configuration in first.configurations}
    found = {}
    for digest, label in _plans(first).items():
        if digest not in planned:
            continue
        kind = kinds[label]
        missing = [one.record.run_id for one, there in ((first, old), (run, new)) if not there.by_digest.get(digest)]
        metric = STEP_METRICS[-1] if kind in KINDS_WITH_STEPS else kind
        found[digest] = ComparedRow(
            configuration=label, kind=kind, metric=metric, context="", run_id=run.record.run_id,
            family=family_of(kind, metric), verdict="unknown",
            why=f"no trial of it succeeded in {missing[0]}" if missing else "",
        )  # fmt: skip
    return found


def _against(blanks: Mapping[str, ComparedRow], old: SampleSet, new: SampleSet, *, same_gpus: bool) -> _Rows:
    shared: dict[What, dict[str, Spread]] = {}
    found: _Rows = []
    for digest, blank in blanks.items():
        before, after = old.by_digest.get(digest, {}), new.by_digest.get(digest, {})
        if not before or not after:
            found.append((blank, None))
            continue
        for what in before:
            if what not in after:
                continue
            if what not in shared:
                shared[what] = _noise(what, blanks, old, new) if same_gpus else {}
            row = replace(blank, metric=what[0], context=what[1], family=family_of(blank.kind, what[0]))
            found.append(_difference(row, before[what], after[what], shared[what].get(digest), same_gpus=same_gpus))
    return found


def _noise(what: What, blanks: Iterable[str], old: SampleSet, new: SampleSet) -> dict[str, Spread]:
    """Digest to the noise of one quantity's difference on one worker, from all configurations that have it."""
    cells = {}
    for digest in blanks:
        before, after = (
            by_worker(one.sample for one in run.by_digest.get(digest, {}).get(what, ())) for run in (old, new)
        )
        cells[digest] = {worker: after[worker] - before[worker] for worker in after if worker in before}
    return pooling.of_differences(cells)


def _difference(
    row: ComparedRow, before: list[Value], after: list[Value], shared: Spread | None, *, same_gpus: bool
) -> tuple[ComparedRow, Mean | None]:
    old, new = [one.sample for one in before], [one.sample for one in after]
    mean = per_config.difference(new, old, same_workers=same_gpus, paired=shared)
    if not measurements.is_rate(row.metric):
        mean = replace(mean, value=-mean.value)  # of a duration or an energy, less is better
    row = replace(row, before=_side(before), after=_side(after), speed_ratio=math.exp(mean.value))
    if mean.half is not None:
        row = replace(row, low=math.exp(mean.value - mean.half), high=math.exp(mean.value + mean.half))
    lonely = min(len(old), len(new)) < 2
    is_one_worker = same_gpus and len({one.worker for one in (*old, *new)}) == 1
    if lonely or mean.df is None or (mean.over == "processes" and not is_one_worker):
        why = (
            "a single process on a side cannot show how processes differ"
            if lonely
            else "a single worker on a side cannot show how workers differ"
        )
        return replace(row, why=why), None
    return row, mean


def _over_all(
    rows: _Rows, blanks: Mapping[str, ComparedRow], old: SampleSet, new: SampleSet, *, same_gpus: bool
) -> _Rows:
    """A row over all configurations that every worker of both runs ran; none with fewer than two of them."""
    metric = STEP_METRICS[-1]
    tested = {row.configuration for row, mean in rows if row.metric == metric and mean is not None}
    sides = []
    for run in (old, new):
        logs = {
            digest: by_worker(one.sample for one in run.by_digest[digest][metric, ""])
            for digest, row in blanks.items()
            if row.configuration in tested
        }
        sides.append(logs)
    whole = [
        digest
        for digest in sides[0]
        if all(len(side[digest]) == len({worker for found in side.values() for worker in found}) for side in sides)
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
    return [_difference(replace(blank, family="speed"), values[0], values[1], None, same_gpus=same_gpus)]


def _side(values: Sequence[Value]) -> RunSide:
    mean = per_config.mean_of_logs([value.sample for value in values])
    value, low, high = mean.ends
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
