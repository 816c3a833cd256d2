"""Settings of a fine-tuning, as part of its trial, and its result (training.json)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.records.checksummed import Checksummed
from bench.records.paths import ADAPTER_CHECK_FILE, TRAINING_FILE
from bench.records.training_data import DataReport, TrainingData
from bench.records.validation import check_types, expect, expect_in_range, expect_one_of

SCHEDULES = ("constant", "linear", "cosine")
GRADIENT_DTYPES = ("fp32", "bf16")
# Fields that a resumed training cannot change, with the reason: of the trial, or `training.` and of `Training`.
FIXED_FIELDS = {
    **dict.fromkeys(("lora_rank", "lora_targets"), "the checkpoint's adapters have another shape"),
    **dict.fromkeys(("lora_alpha", "training.rank_stabilized"), "the learned weights would be rescaled"),
    **dict.fromkeys(("optimizer", "training.lora_plus_ratio"), "the checkpoint's optimizer state has another layout"),
}
LIMIT_SETTINGS = ("train.max_hours", "train.budget_usd")  # settings that limit a training's hours
LIMIT_REACHED = tuple(f"stopped by {name} " for name in LIMIT_SETTINGS)  # prefixes of a reason


def is_limit_reached(reason: str | None) -> bool:
    """Return True if a training with this reason ended because it reached its limit of hours or dollars."""
    return reason is not None and reason.startswith(LIMIT_REACHED)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of a fine-tuning in addition to the fields of its trial.

    `rows_per_step`: packed rows of a global batch, over all ranks and micro-batches. The training ends after `epochs`,
    or after `max_steps` if that comes first. The learning rate rises from 0 over `warmup_share` of the steps, then
    follows the `schedule` down to 0. `rank_stabilized`: adapters are scaled by alpha / sqrt(rank) (rsLoRA).
    `lora_plus_ratio`: the learning rate of B over that of A (LoRA+). `gradients`: the dtype sent between ranks.

    The held-out loss is measured at the start, at the end, and every `evaluate_every` steps (0: never between); after
    `patience` measurements without a new minimum the training stops early (0: never). `prompts` are answered before and
    after, with at most `answer_tokens` tokens. `max_hours` counts this attempt and earlier ones; `limited_by` is the
    setting behind it.

    `may_differ`: values that may differ from the checkpoint's on resume, because the operator confirmed the change:
    `model`, `data`, fields of the trial, `training.` and fields of this class, none of them in `FIXED_FIELDS`.

    `input_digests`: the planned sha256 of the model and of each data file, by path; an attempt with other inputs is
    rejected. Empty if no worker has read them. `revision`: how often the plan was changed by the operator.
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
    limited_by: str = LIMIT_SETTINGS[0]
    may_differ: tuple[str, ...] = ()
    input_digests: dict[str, str] = field(default_factory=dict)
    revision: int = 0

    def __post_init__(self) -> None:
        """Check the fields. Raises TrialError that names the field."""
        check_types(self)
        expect_in_range(self.rows_per_step, 1, 65_536, "rows_per_step")
        expect(0.0 < self.epochs <= 1000.0, "epochs", "a number above 0, at most 1000")
        if self.max_steps is not None:
            expect_in_range(self.max_steps, 1, 10_000_000, "max_steps")
        expect_one_of(self.schedule, SCHEDULES, "schedule")
        expect(0.0 <= self.warmup_share < 1.0, "warmup_share", "a number from 0 to below 1")
        expect(0.0 <= self.weight_decay <= 1.0, "weight_decay", "a number from 0 to 1")
        expect(0.0 < self.max_gradient_norm <= 1e6, "max_gradient_norm", "a number above 0, at most 1000000")
        expect(0.01 <= self.lora_plus_ratio <= 100.0, "lora_plus_ratio", "a number from 0.01 to 100")
        expect_one_of(self.gradients, GRADIENT_DTYPES, "gradients")
        expect_in_range(self.evaluate_every, 0, 10_000_000, "evaluate_every")
        expect_in_range(self.patience, 0, 10_000, "patience")
        held_out = self.data.validation_file is not None or self.data.validation_share > 0
        expect(held_out or not self.evaluate_every, "evaluate_every", "0 if no data is held out for validation")
        expect(held_out or not self.patience, "patience", "0 if no data is held out for validation")
        expect(bool(self.evaluate_every) or not self.patience, "patience", "0 if evaluate_every is 0")
        expect(0.0 <= self.checkpoint_sec <= 86_400.0, "checkpoint_sec", "0 to 86400 seconds")
        expect_in_range(self.keep_checkpoints, 1, 1000, "keep_checkpoints")
        expect(all(self.prompts), "prompts", "texts, none of them empty")
        expect_in_range(self.answer_tokens, 1, 65_536, "answer_tokens")
        expect(self.max_hours is None or 0.0 < self.max_hours <= 8760.0, "max_hours", "above 0, at most 8760 hours")
        expect_one_of(self.limited_by, LIMIT_SETTINGS, "limited_by")
        expect_in_range(self.revision, 0, 1_000_000, "revision")
        for name in self.may_differ:
            expect(name not in FIXED_FIELDS, "may_differ", f"no {name}: {FIXED_FIELDS.get(name)}")


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A worker's forecast of a training before it starts.

    `peak_bytes` is GPU memory, `row_sec` one GPU's estimated time per packed row without communication; both are None
    without a GPU or its published figures. `recipe` is the one that will be built, with the reason for a fallback.
    """

    model_sha256: str
    gpu: str | None
    gpus: int
    gpu_memory_bytes: int | None
    peak_bytes: int | None
    adapter_weights: int
    row_sec: float | None
    data: DataReport | None = None
    recipe: str | None = None  # None from a worker of an older version, as are steps
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainedSteps:
    """Optimizer steps in order, in lists of equal length, without steps that a restart repeated.

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
    """Held-out loss per target token after `step` steps, with its 95 % interval over `rows` examples.

    A single example has no interval. `is_best`: the lowest so far, except step 0. `change` is the paired difference to
    step 0 over the same examples, with its own interval; None at step 0.
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
    """A written checkpoint: `seconds` until it was complete on disk, `stall_sec` for which training paused."""

    step: int
    seconds: float
    stall_sec: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Restart:
    """An attempt that resumed after `from_step` steps, with its reason and the repeated steps of the last attempt.

    `lost_sec` is the time of those steps; the time until the restart is in the ledger. `changed` names values that
    differ from the checkpoint's, as the operator confirmed.
    """

    attempt: int
    from_step: int
    reason: str
    lost_steps: int
    lost_sec: float
    changed: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SampleAnswer:
    """Greedy answers to a prompt by the model before training and by the final adapter; None if not generated.

    `*_ended`: False if the answer reached `answer_tokens` before its end; None if unknown, as in earlier versions.
    """

    prompt: str
    before: str | None
    after: str | None
    before_ended: bool | None = None
    after_ended: bool | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(Checksummed):
    """Result of a fine-tuning over all its attempts (training.json), also of a failed one.

    `status` is a TrialStatus; `stop` is the reason for the last step: finished, early, max_hours (one of the
    `LIMIT_SETTINGS` was reached), or empty if stopped otherwise (`reason`). `adapter_step` is the step of the saved
    adapter: the best by held-out loss, or the last. `data` has no example previews. Shares of communication are of a
    step's time.
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


FORM_LABELS = {  # by ServedForm.name
    "trained": "as trained",
    "bf16": "adapter on the bf16 base",
    "merged-bf16": "merged, --base=bf16",
    "merged-nf4": "merged, --base=nf4",
    "folder": "the merged folder",
}


@dataclass(frozen=True, kw_only=True)
class ServedForm:
    """An adapter in one form for serving: its held-out loss per target token with its 95 % interval.

    `change` is the paired difference to the first form of the check over the same examples; None for the first form.
    `unended`: number of answers that reached the length limit.
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
    """Result of `bench.adapter.check` (adapter-check.json).

    `losses` (summed over an example's `targets`) are those of the first form, for the example digests in `examples`;
    `places` and `prompts` identify the answered questions.
    """

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
    """Sources of a merged model (merge.json in its folder). `base`: bf16, or nf4 for the base used in training."""

    base: str
    model_sha256: str
    adapter_sha256: str
    end_ids: list[int]
    shards: int
    bytes: int
