"""Data files of a training and the report about them, exchanged by the operator's machine and a worker."""

from dataclasses import dataclass, field

from bench.records.setting import check_settings, setting
from bench.records.validation import FieldError

LABELS = ("assistant", "all")
TOO_LONG = ("drop", "cut")
BAD_LINES = ("refuse", "skip")
SPECIAL_TOKENS = ("keep", "text")
MAX_SKIPPED_SHARE = 0.01  # share of a file's lines; more bad lines are a fault of the file
MAX_WEIGHT = 100.0


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Data files and how they become examples.

    `weights`: repetitions of each file's lines per epoch, one per file. `validation_share` of the lines is held out,
    selected by each line's digest, unless `validation_file` names a separate file. `labels` and `too_long` are
    explained in `bench.data.masking`, `bad_lines` in `bench.data.readers`, `special_tokens` in `bench.data.tokenizer`.
    """

    files: list[str]
    weights: list[float]
    max_seq_len: int
    validation_share: float = setting(
        0.02,
        "fraction of the lines to hold out, 0 to 0.5, chosen by each line's digest",
        name="validation_fraction",
        stored_default=0.0,
        ge=0,
        le=0.5,
    )
    validation_file: str | None = setting(
        None, "validation data file instead of held-out lines; it is never trained on", expected="a file's path"
    )
    labels: str = setting(
        "assistant",
        "tokens to train on: assistant (answers and their end tokens), or all",
        name="label_mask",
        choices=LABELS,
    )
    too_long: str = setting(
        "drop", "examples over max_seq_len: drop, or cut after the last whole answer that fits", choices=TOO_LONG
    )
    bad_lines: str = setting(
        "refuse",
        "lines that cannot be used: refuse the file and list them, or skip at most 1 % of the lines",
        choices=BAD_LINES,
    )
    # Plans of versions without this field kept the tokens.
    special_tokens: str = setting(
        "text",
        "control tokens typed in a text of the data, e.g. </s>: text, or keep them as control tokens",
        stored_default="keep",
        choices=SPECIAL_TOKENS,
    )

    def __post_init__(self) -> None:
        """Check the fields. Raises TrialError that names the field."""
        if not self.files or len(set(self.files)) != len(self.files):
            raise FieldError("files", "expected at least one data file, each named once")
        if len(self.weights) != len(self.files):
            raise FieldError("weights", f"expected one for each of {len(self.files)} files, found {len(self.weights)}")
        for weight in self.weights:
            if not 0 < weight <= MAX_WEIGHT:
                raise FieldError("weights", f"expected numbers above 0 and up to {MAX_WEIGHT:g}, found {weight:g}")
        if self.max_seq_len < 2:
            raise FieldError("max_seq_len", f"expected at least 2 tokens, found {self.max_seq_len}")
        if self.validation_file is not None and self.validation_share:
            raise FieldError("validation_share", "validation_file is set too", remedy="set only one of them")
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """One data file: its kind and sha256, its lines with an example, and their weight per epoch."""

    path: str
    kind: str
    sha256: str
    bytes: int
    lines: int
    weight: float


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
class DataReport:
    """Report about a training's data. Lengths are in tokens.

    `lengths` counts training examples by length, `length_edges` are the bins' upper ends. `tokens` and `targets` are
    those of one epoch, including weights.
    """

    files: list[FileFacts]
    examples: int
    validation_examples: int
    tokens: int
    targets: int
    longest: int
    median_length: float
    rows: int
    lengths: list[int]
    length_edges: list[int]
    left_out: int
    findings: list[DataFinding]
    shown: list[ConversationPreview]
    was_cached: bool
    seconds: float
