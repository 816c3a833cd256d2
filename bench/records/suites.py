"""Suites of the workloads as trials, at the scale of a profile."""

from dataclasses import dataclass

from bench.records.trial import Trial
from bench.records.validation import expect_one_of
from bench.records.workloads import SUITES, SuiteTrial


@dataclass(frozen=True, kw_only=True)
class SuiteScale:
    """Size of a suite's trials. Every result names its profile, so that sizes cannot be confused."""

    profile: str
    note: str
    seq_divisor: int
    warmup_steps: int
    measured_steps: int
    learning_rate: float
    deadline_sec: float


SCALES: dict[str, SuiteScale] = {
    "gpu": SuiteScale(
        profile="gpu",
        note="the published sizes, for one GPU",
        seq_divisor=1,
        warmup_steps=5,
        measured_steps=30,
        learning_rate=2e-4,
        deadline_sec=1800.0,
    ),
    # With an eighth of each length both quick trials have 512 tokens a step; their originals both have 4096.
    "tiny": SuiteScale(
        profile="tiny",
        note="scaled down for a machine without a GPU: an eighth of each sequence length, few steps; "
        "these numbers say nothing about an A10",
        seq_divisor=8,
        warmup_steps=3,
        measured_steps=15,
        learning_rate=4e-3,  # the small random model learns visibly within 18 steps at this rate
        deadline_sec=300.0,
    ),
}


ALL = "all"
SUITE_NAMES = (*SUITES, ALL)


def suite(name: str, profile: str, model: str, data: str) -> tuple[Trial, ...]:
    """Return the trials of a suite at a profile's scale. Raises TrialError for an unknown suite or profile.

    `all` has every suite with `is_in_all`; of trials with the same name it has the last.
    """
    expect_one_of(name, SUITE_NAMES, "suite")
    expect_one_of(profile, tuple(SCALES), "profile")
    names = [part for part, (_, suite) in SUITES.items() if suite.is_in_all] if name == ALL else [name]
    trials = {
        planned.name: _make_trial(part, planned, SCALES[profile], model, data)
        for part in names
        for planned in SUITES[part][1].trials
    }
    return tuple(trials.values())


def _make_trial(suite_name: str, planned: SuiteTrial, scale: SuiteScale, model: str, data: str) -> Trial:
    workload, _ = SUITES[suite_name]
    return Trial(
        name=planned.name,
        reason=planned.reason,
        suite=suite_name,
        kind=workload.name,
        profile=scale.profile,
        model=model,
        data=data,
        max_seq_len=planned.max_seq_len // scale.seq_divisor,
        micro_batch_size=planned.micro_batch_size,
        warmup_steps=scale.warmup_steps,
        measured_steps=scale.measured_steps,
        learning_rate=scale.learning_rate,
        deadline_sec=workload.deadlines.get(scale.profile, scale.deadline_sec),
        **planned.fields,
    )
