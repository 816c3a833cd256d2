"""A fine-tuning: how it trains, as the trial holds it, and what became of it, training.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.records.checksummed import Checksummed
from bench.records.paths import ADAPTER_CHECK_FILE, TRAINING_FILE
from bench.records.training_data import DataReport, TrainingData
from bench.records.validation import among, check_types, expect, within

SCHEDULES = ("constant", "linear", "cosine")
GRADIENTS = ("fp32", "bf16")
# What stays as it was while a training goes on, and why: fields of the trial, or `training.` and a field of `Training`.
FIXED = {
    **dict.fromkeys(("lora_rank", "lora_targets"), "the checkpoint's adapters have another shape"),
    **dict.fromkeys(("lora_alpha", "training.rank_stabilized"), "what was learned would be scaled anew"),
    **dict.fromkeys(("optimizer", "training.lora_plus_ratio"), "the checkpoint's optimizer is laid out otherwise"),
}
LIMITS = ("train.max_hours", "train.budget_usd")  # the settings that give a training its hours
LIMIT_REACHED = tuple(f"stopped by {name} " for name in LIMITS)  # how the reason begins of one that used them up


def is_at_its_limit(reason: str | None) -> bool:
    """Whether a training ended with this reason because its hours or dollars are used up."""
    return reason is not None and reason.startswith(LIMIT_REACHED)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a fine-tuning trains, beside what its trial says.

    `rows_per_step`: packed rows of a global batch, over all ranks and micro-batches. It ends after `epochs`, or after
    `max_steps` if that comes first. The learning rate rises from 0 over `warmup_share` of the steps, then follows the
    `schedule` down to 0. `rank_stabilized`: adapters are scaled by alpha / sqrt(rank) (rsLoRA). `lora_plus_ratio`: the
    learning rate of B over that of A (LoRA+). `gradients`: what travels between ranks.

    The held-out loss is measured at the start, at the end, and every `evaluate_every` steps (0: never between); after
    `patience` measurements without a new lowest the training stops early (0: never). `prompts` are answered before and
    after, with at most `answer_tokens` tokens. `max_hours` counts this attempt and those before it; `limited_by` is the
    setting that it comes from.

    `may_differ`: what the checkpoint that it goes on from may have been made with another value of, because somebody
    asked for that: `model`, `data`, fields of the trial, `training.` and fields of this, none of them `FIXED`.
    """

    data: TrainingData
    rows_per_step: int
    epochs: float = 1.0
    max_steps: int | None = None
    schedule: str = "cosine"
    warmup_share: float = 0.03
    weight_decay: float = 0.0
    max_gradient_norm: float = 1.0
    rank_stabilized: bool = False
    lora_plus_ratio: float = 1.0
    gradients: str = "fp32"
    evaluate_every: int = 0
    patience: int = 0
    checkpoint_sec: float = 60.0
    keep_checkpoints: int = 3
    prompts: tuple[str, ...] = ()
    answer_tokens: int = 64
    max_hours: float | None = None
    limited_by: str = LIMITS[0]
    may_differ: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises TrialError that names the field."""
        check_types(self)
        within(self.rows_per_step, 1, 65_536, "rows_per_step")
        expect(0.0 < self.epochs <= 1000.0, "epochs", "a number above 0, at most 1000")
        if self.max_steps is not None:
            within(self.max_steps, 1, 10_000_000, "max_steps")
        among(self.schedule, SCHEDULES, "schedule")
        expect(0.0 <= self.warmup_share < 1.0, "warmup_share", "a number from 0 to below 1")
        expect(0.0 <= self.weight_decay <= 1.0, "weight_decay", "a number from 0 to 1")
        expect(0.0 < self.max_gradient_norm <= 1e6, "max_gradient_norm", "a number above 0, at most 1000000")
        expect(0.01 <= self.lora_plus_ratio <= 100.0, "lora_plus_ratio", "a number from 0.01 to 100")
        among(self.gradients, GRADIENTS, "gradients")
        within(self.evaluate_every, 0, 10_000_000, "evaluate_every")
        within(self.patience, 0, 10_000, "patience")
        held_out = self.data.validation_file is not None or self.data.validation_share > 0
        expect(held_out or not self.evaluate_every, "evaluate_every", "0 where no data is held out for validation")
        expect(held_out or not self.patience, "patience", "0 where no data is held out for validation")
        expect(bool(self.evaluate_every) or not self.patience, "patience", "0 where evaluate_every is 0")
        expect(0.0 <= self.checkpoint_sec <= 86_400.0, "checkpoint_sec", "0 to 86400 seconds")
        within(self.keep_checkpoints, 1, 1000, "keep_checkpoints")
        expect(all(self.prompts), "prompts", "texts, none of them empty")
        within(self.answer_tokens, 1, 65_536, "answer_tokens")
        expect(self.max_hours is None or 0.0 < self.max_hours <= 8760.0, "max_hours", "above 0, at most 8760 hours")
        among(self.limited_by, LIMITS, "limited_by")
        for name in self.may_differ:
            expect(name not in FIXED, "may_differ", f"no {name}: {FIXED.get(name)}")


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a worker says of a training before it starts. `peak_bytes` is of GPU memory, `row_sec` an estimate of one
    GPU's time for a packed row, without communication; both are None without a GPU or its figures."""

    model_sha256: str
    gpu: str | None
    gpus: int
    gpu_memory_bytes: int | None
    peak_bytes: int | None
    adapter_weights: int
    row_sec: float | None
    data: DataReport | None = None


@dataclass(frozen=True, kw_only=True)
class TrainedSteps:
    """One entry per optimizer step, in order, in lists of equal length: every step that counts, once.

    `loss` is per target token of the global batch, `gradient_norm` before clipping, `tokens` without padding.
    """

    step: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    gradient_norm: list[float] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    step_time_sec: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The held-out loss per target token after `step` steps, with its 95 % interval over `rows` examples.

    Of a single example there is no interval. `is_best`: the lowest so far, step 0 aside. `change` is against step 0
    over the same examples, pair by pair, with its own interval; None at step 0.
    """

    step: int
    loss: float
    low: float | None
    high: float | None
    rows: int
    targets: int
    is_best: bool
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """A checkpoint that was written: seconds until it was sealed on the disk, and how long the steps stood still."""

    step: int
    seconds: float
    stall_sec: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Restart:
    """An attempt that went on after `from_step` steps: why, and how many steps of the last attempt it repeats.

    `lost_sec` is what those steps had taken; the time until the restart is in the ledger. `changed` names what the
    checkpoint was made with and is another now, because somebody asked for that.
    """

    attempt: int
    from_step: int
    reason: str
    lost_steps: int
    lost_sec: float
    changed: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SampleAnswer:
    """A prompt's greedy answer by the model before training and by the adapter that came home; None where not asked."""

    prompt: str
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(Checksummed):
    """What became of a fine-tuning, over all its attempts: training.json, also of one that did not end well.

    `status` is the trial's End, `stop` why no further step came: finished, early, max_hours (its hours are used up, by
    whichever of the `LIMITS`), or empty where it was stopped otherwise (`reason`). `adapter_step` is the step whose
    adapter is in the folder beside: the best by held-out loss, or the last. `data` is without shown examples. Shares of
    communication are of a step's time.
    """

    FILE, KIND = TRAINING_FILE, "training"

    run_id: str | None
    trial_id: str
    attempt: int
    world_size: int
    status: str
    reason: str | None
    stop: str
    steps_planned: int
    steps_done: int
    steps: TrainedSteps
    evaluations: list[Evaluation]
    checkpoints: list[CheckpointFacts]
    restarts: list[Restart]
    answers: list[SampleAnswer]
    data: DataReport | None
    adapter_step: int | None
    adapter_sha256: str | None
    adapter_files: dict[str, int]
    communication_predicted_percent: float | None
    communication_measured_percent: float | None
    peak_vram_bytes: int | None
    peak_rss_bytes: int | None
    seconds: float
    fingerprint: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServedForm:
    """An adapter in one form that it can be served in: its held-out loss per target token with its 95 % interval.

    `change` is against the first form of the check, over the same examples, pair by pair; None for that form itself.
    `unended`: how many of the answers did not end.
    """

    name: str
    loss: float
    low: float | None
    high: float | None
    change: float | None
    change_low: float | None
    change_high: float | None
    answers: list[str]
    unended: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class AdapterCheck(Checksummed):
    """What `bench.adapter.check` found, adapter-check.json. `losses` (summed over an example's `targets`) are those of
    the first form, by the digests `examples`; `places` and `prompts` are of the questions that were answered."""

    FILE, KIND = ADAPTER_CHECK_FILE, "adapter check"

    adapter_sha256: str
    model_sha256: str
    data_sha256: str
    merged: str | None
    end_ids: list[int]
    places: list[str]
    prompts: list[str]
    forms: list[ServedForm]
    examples: list[str]
    losses: list[float]
    targets: list[int]
    device: str
    arithmetic: str


@dataclass(frozen=True, kw_only=True)
class MergeFacts:
    """What a merged folder was made from, merge.json in it. `base`: bf16, or nf4 for the base as it was trained on."""

    base: str
    model_sha256: str
    adapter_sha256: str
    end_ids: list[int]
    shards: int
    bytes: int
