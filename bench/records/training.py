"""A fine-tuning: its data and their report, its settings as part of its trial, and its result (training.json)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.records.checksummed import Checksummed
from bench.records.paths import TRAINING_FILE
from bench.records.score import TrainingScore, TrainingTime, check_score
from bench.records.status import Outcome, ReasonCode, TrialStatus
from bench.records.validation import (
    REQUIRED,
    FieldError,
    check_ranges,
    checked,
    expect,
    setting,
)

LABELS = ("assistant", "all")
TOO_LONG = ("drop", "cut")
SPECIAL_TOKENS = ("keep", "text")
SCHEDULES = ("constant", "linear", "cosine")
GRADIENT_DTYPES = ("fp32", "bf16")


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Settings by which the lines of a data file become token ids, in a training and in a benchmark.

    `labels` is explained in `bench.data.masking`, `special_tokens` in `bench.data.tokenizer`. `chat_template` is a
    template's text, read from the setting's file.
    """

    labels: str = setting(
        "assistant",
        "tokens to train on: assistant (answers and their end tokens), or all",
        name="label_mask",
        choices=LABELS,
    )
    columns: dict[str, str | None] = setting(  # noqa: RUF009 - a field with a factory
        {},
        "names of the data's columns, e.g. {prompt: question, messages: null}; null: not read; empty: the known names",
        expected="a mapping of our name to the file's, each file's once, or to null",
    )
    special_tokens: str = setting(
        "text",
        "control tokens typed in a text of the data, e.g. </s>: text, or keep them as control tokens",
        choices=SPECIAL_TOKENS,
    )
    system: str | None = setting(None, "system prompt of conversations that have none; null: none", expected="text")
    chat_template: str | None = setting(
        None,
        "local file with a chat template that replaces the model's, also in the adapter; null: the model's",
        expected="a file's path",
    )

    def __post_init__(self) -> None:
        """Check the fields. Raises TrialError that names the field."""
        check_ranges(self)
        named = [name for name in self.columns.values() if name is not None]
        if len(set(named)) < len(named):
            raise FieldError("columns", "expected each of the file's columns once")
        for name in ("system", "chat_template"):
            expect(getattr(self, name) is None or bool(getattr(self, name).strip()), name, "a text that is not empty")

    @property
    def needs_own_template(self) -> bool:
        """Return whether the model must have a chat template. A training on every token may have plain text."""
        return self.chat_template is None and self.labels != "all"


DEFAULT_DATA_OPTIONS = DataOptions()  # a benchmark without any setting has these


@dataclass(frozen=True, kw_only=True)
class TrainingData(DataOptions):
    """Data files and how they become examples.

    `validation_share` of the lines is held out, selected by each line's digest, unless `validation_file` names a
    separate file. `too_long` is explained in `bench.data.masking`.
    """

    files: list[str]
    max_seq_len: int = checked(ge=2)
    validation_share: float = setting(
        None,
        "fraction of the lines to hold out; chosen by each line's digest; auto: from the data",
        name="validation_fraction",
        stored_default=0.0,
        usual=0.02,
        ge=0,
        le=0.5,
    )
    validation_file: str | None = setting(
        None, "validation data file instead of held-out lines; it is never trained on", expected="a file's path"
    )
    too_long: str = setting(
        "drop", "examples over max_seq_len: drop, or cut after the last whole answer that fits", choices=TOO_LONG
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.files or len(set(self.files)) != len(self.files):
            raise FieldError("files", "expected at least one data file, each named once")
        if self.validation_file is not None and self.validation_share:
            raise FieldError("validation_share", "validation_file is set too", remedy="set only one of them")


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """One data file: its kind and sha256, its usable lines, and the tokens of an epoch."""

    path: str
    kind: str
    sha256: str
    lines: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class DataFinding:
    """A kind of problem in the data: its number of lines, and the first few places, `FILE: line N`."""

    what: str  # vocabulary: field of a stored record
    count: int
    places: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """A span of an example's text; `is_target` if the model trains on it."""

    text: str
    is_target: bool


@dataclass(frozen=True, kw_only=True)
class ConversationPreview:
    """Preview of one example: its place in the data, its tokens, and its text in parts."""

    place: str  # vocabulary: field of a stored record
    tokens: int
    targets: int
    parts: list[DataPart]


@dataclass(frozen=True, kw_only=True)
class LostToLength:
    """Rows and tokens that are dropped or cut because they are longer than max_seq_len, of all rows and tokens.

    `enough` is the max_seq_len that loses at most 1 % of both, None if this one does. `lines` are left out as a whole.
    """

    rows: int
    all_rows: int
    tokens: int
    all_tokens: int
    enough: int | None
    lines: int = 0


@dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """Facts about the lines of data files.

    `left_out` counts lines without an example, `duplicates` those that repeat another one.
    """

    files: list[FileFacts]
    findings: list[DataFinding]
    left_out: int
    shown: list[ConversationPreview]
    lost: LostToLength | None = None
    duplicates: int = 0


@dataclass(frozen=True, kw_only=True)
class DataReport(DatasetFacts):
    """Report about a training's data. Lengths are in tokens.

    `lengths` counts training examples by length, `length_edges` are the bins' upper ends. `tokens` and `targets` are
    those of one epoch. `positions` are those of its rows, with padding; without `is_packed`, rows hold examples side by
    side, and take `slowdown` times the time of packed ones.
    """

    examples: int
    validation_examples: int
    tokens: int
    targets: int
    longest: int
    median_length: float
    rows: int
    is_packed: bool
    positions: int
    slowdown: float
    lengths: list[int]
    length_edges: list[int]
    was_cached: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class DerivedSettings:
    """Values that were derived from data and GPU, for settings that the user left open; None for the others."""

    validation_share: float | None = None
    rows_per_step: int | None = None
    warmup_share: float | None = None
    micro_batch_size: int | None = None
    gradient_checkpointing: bool | None = None
    checkpoint_every: int | None = None
    offload_checkpoints: bool | None = None
    held_layers: int | None = None
    optimizer: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The derived values by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of a fine-tuning in addition to the fields of its trial.

    `rows_per_step`: packed rows of a global batch, over all ranks and micro-batches. The training ends after `epochs`,
    or after `max_steps` if that comes first. The learning rate rises from 0 over `warmup_share` of the steps, then
    follows the `schedule` down to 0. `gradients`: the dtype sent between ranks.

    The held-out loss is measured at the start, at the end, and every `evaluate_every` steps (0: never between); after
    `patience` measurements without a new minimum the training stops early (0: never). `max_hours` counts this attempt
    and earlier ones.

    `score` names how answers to held-out prompts are compared with the data's own answers, before and after the
    training (`bench.workloads.finetune.score`): one of SCORE_METHODS, or a Python file.

    `input_digests`: the planned sha256 of the model and of each data file, by path; an attempt with other inputs is
    rejected. Empty if no worker has read them.

    `init_adapter`, in a plan: folder on the workers with the adapter that step 0 has, whose sha256 is `init_sha256`.
    """

    data: TrainingData
    rows_per_step: int = setting(
        None,
        "packed rows per optimizer step over all workers; auto: from the data",
        stored_default=REQUIRED,
        usual=4,
        ge=1,
        le=65_536,
    )
    epochs: float = setting(1.0, "passes over the data", gt=0, le=1000)
    max_steps: int | None = setting(None, "stop after this many steps; null: no limit", ge=1, le=10_000_000)
    schedule: str = setting(
        "cosine", "learning rate after warm-up: constant, linear decay to 0, or cosine decay to 0", choices=SCHEDULES
    )
    warmup_share: float = setting(
        None,
        "fraction of the steps for learning rate warm-up; auto: from the data",
        stored_default=0.03,
        usual=0.03,
        ge=0,
        le=0.9,
    )
    weight_decay: float = setting(0.0, "weight decay of AdamW", ge=0, le=1)
    max_gradient_norm: float = setting(1.0, "gradient clipping: maximum norm", gt=0, le=1_000_000)
    gradients: str = setting(
        "fp32",
        "type of the gradients sent between workers: fp32, or bf16 with half the traffic and rounding",
        name="gradient_dtype",
        choices=GRADIENT_DTYPES,
    )
    evaluate_every: int = setting(
        0, "steps between two evaluations of the held-out loss; 0: only at start and end", ge=0, le=10_000_000
    )
    patience: int = setting(
        0,
        "stop after this many evaluations without a new lowest loss; 0: never",
        name="early_stopping_patience",
        ge=0,
        le=10_000,
    )
    checkpoint_sec: float = setting(60.0, "time between two checkpoints", unit="seconds", ge=0, le=86_400)
    keep_checkpoints: int = setting(3, "number of newest checkpoints to keep, in addition to the best", ge=1, le=1000)
    score: str | None = setting(
        None,
        "how answers to held-out prompts are scored: exact, contains, json, or a Python file; null: not",
        expected="a name or a file's path",
    )
    score_rows: int = setting(200, "held-out prompts that are scored", ge=1, le=10_000)
    init_adapter: str | None = setting(
        None,
        "adapter to begin from: a run of `inv train`, or a local folder of peft; null: a new adapter",
        expected="a run's id or a folder's path",
    )
    init_sha256: str | None = None
    max_hours: float | None = setting(
        None, "time limit; the training stops there with a checkpoint; null: no limit", unit="hours", gt=0, le=8760
    )
    input_digests: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the fields. Raises TrialError that names the field."""
        check_ranges(self)
        held_out = self.data.validation_file is not None or self.data.validation_share > 0
        expect(held_out or not self.evaluate_every, "evaluate_every", "0 if no data is held out for validation")
        expect(held_out or not self.patience, "patience", "0 if no data is held out for validation")
        expect(bool(self.evaluate_every) or not self.patience, "patience", "0 if evaluate_every is 0")
        check_score(self.score, is_scorable=held_out and self.data.labels == "assistant")

    def with_derived(self, derived: DerivedSettings) -> Training:
        """Return the settings with their derived values; the others stay."""
        share = self.data.validation_share if derived.validation_share is None else derived.validation_share
        values = {name: value for name, value in derived.values.items() if name in Training.__dataclass_fields__}
        return replace(self, data=replace(self.data, validation_share=share), **values)


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

    def add(self, values: Mapping[str, float]) -> None:
        """Add one step, its values by name."""
        for name, column in vars(self).items():
            column.append(values[name])


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
class Restart:
    """An attempt that resumed after `from_step` steps; why the one before it ended is in the ledger.

    `since_checkpoint_sec` is the time from the checkpoint to the attempt's own first step, by the clock of their files;
    None without a checkpoint or step.
    """

    attempt: int
    from_step: int
    since_checkpoint_sec: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(Checksummed):
    """Result of a fine-tuning over all its attempts (training.json), also of a failed one.

    `status` is a TrialStatus; `stop` is the reason for the last step: finished, early, max_hours, or empty if stopped
    otherwise (`reason`). `adapter_step` is the step of the saved adapter: the best by held-out loss, or the last.
    `data` has no example previews. The share of communication is of a step's time. `score` is None without train.score,
    `time` if no rank has trained. `end_ids` are the tokens that end the data's answers. `derived` are the settings that
    the attempt derived from the data.
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
    restarts: list[Restart]
    data: DataReport | None
    adapter_step: int | None
    adapter_sha256: str | None
    adapter_files: dict[str, int]
    communication_measured_percent: float | None
    peak_vram_bytes: int | None
    fingerprint: dict[str, Any] = field(default_factory=dict)
    reason_code: ReasonCode | None = None
    remedy: str | None = None
    score: TrainingScore | None = None
    time: TrainingTime | None = None
    end_ids: list[int] = field(default_factory=list)
    derived: DerivedSettings = field(default_factory=DerivedSettings)

    @property
    def outcome(self) -> Outcome:
        return Outcome(TrialStatus(self.status), self.reason_code, self.reason, self.remedy)
