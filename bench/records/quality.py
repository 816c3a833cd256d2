"""Held-out losses of configurations against the reference, pair by pair (quality.json in a run's folder)."""

from dataclasses import dataclass, field, replace
from typing import Any

from bench.records.checksummed import Checksummed
from bench.records.paths import QUALITY_FILE
from bench.records.trial import Trial
from bench.records.validation import check_ranges, checked, expect

# Fields of a trial on which its trained adapter depends. All others select how fast a step is, or which rows it takes,
# and these are equal in both trainings of a pair.
LOSS_FIELDS = (
    *("recipe", "matmul", "base_precision", "optimizer"),
    *("lora_rank", "lora_alpha", "lora_dropout", "lora_targets"),
)


def loss_fields(trial: Trial) -> dict[str, Any]:
    """Return the values of LOSS_FIELDS. Configurations of equal values reach the same loss."""
    return {name: getattr(trial, name) for name in LOSS_FIELDS}


def reference_of(baseline: Trial, trial: Trial) -> Trial:
    """Return the configuration to compare a trial with: the baseline's adapters in the published loop.

    Its optimizer keeps 32 bits if that of the baseline or of the trial does, so that the trial's is not compared with a
    less exact one.
    """
    is_exact = "adamw_torch" in (baseline.optimizer, trial.optimizer)
    fields = {"recipe": "reference", "matmul": "bf16", "optimizer": "adamw_torch" if is_exact else baseline.optimizer}
    return Trial(
        **{name: getattr(baseline, name) for name in ("reason", "suite", "profile", "model", "data")},
        name="reference",
        **loss_fields(baseline) | fields,
    )


@dataclass(frozen=True, kw_only=True)
class LossPair:
    """Held-out losses in nats per target token after two trainings of one seed."""

    seed: int = checked(ge=0, le=2**31 - 1)
    reference: float = checked(gt=0, le=1e6)
    loss: float = checked(gt=0, le=1e6)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class LossCheck:
    """Comparison of one configuration with the reference.

    A comparison with more pairs than before has another of `run_ids`. `pairs` is empty until the newest of them has
    ended; then `reason` says why none has two losses. `planned_pairs` counts those of all runs.
    """

    label: str
    trial: Trial
    reference: Trial
    run_ids: list[str]
    planned_pairs: int = checked(ge=2, le=1000)
    pairs: list[LossPair] = field(default_factory=list)
    reason: str | None = None

    @property
    def is_complete(self) -> bool:
        return bool(self.pairs) or self.reason is not None


@dataclass(frozen=True, kw_only=True)
class QualityRecord(Checksummed):
    """All comparisons of a run. A training has `steps` optimizer steps of `step_tokens` positions.

    A configuration is at the same loss if the bound of its increase is at most `max_increase_percent`.
    """

    FILE, KIND = QUALITY_FILE, "quality"

    max_increase_percent: float
    steps: int
    checks: list[LossCheck] = field(default_factory=list)

    def __post_init__(self) -> None:
        expect(0 < self.max_increase_percent <= 100, "max_increase_percent", "above 0, at most 100")
        expect(self.steps >= 1, "steps", "at least 1")

    def with_check(self, check: LossCheck) -> "QualityRecord":
        """Return the record with this comparison, in the place of its earlier state."""
        earlier = self.find(check.trial)
        checks = (
            [*self.checks, check] if earlier is None else [check if each is earlier else each for each in self.checks]
        )
        return replace(self, checks=checks)

    def find(self, trial: Trial) -> LossCheck | None:
        """Return the comparison that holds for a configuration: that of equal LOSS_FIELDS."""
        wanted = loss_fields(trial)
        return next((check for check in self.checks if loss_fields(check.trial) == wanted), None)
