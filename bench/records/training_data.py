"""What a training trains on, and what was found in it: the records that the operator's side and a worker exchange."""

from dataclasses import dataclass, field

from bench.records.validation import TrialError, among

LABELS = ("assistant", "all")
TOO_LONG = ("drop", "cut")
MOST_WEIGHT = 100.0


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Data files and how they become examples.

    `weights`: how often each file's lines stand in an epoch, one for each of `files`. `validation_share` of the lines
    is held out, chosen by each line's digest, unless `validation_file` names a file of its own. `labels` and `too_long`
    are explained in `bench.train.masking`.
    """

    files: list[str]
    weights: list[float]
    max_seq_len: int
    validation_share: float = 0.0
    validation_file: str | None = None
    labels: str = "assistant"
    too_long: str = "drop"

    def __post_init__(self) -> None:
        """Raises TrialError that names the field."""
        if not self.files or len(set(self.files)) != len(self.files):
            raise TrialError("files: expected at least one data file, each named once")
        if len(self.weights) != len(self.files):
            raise TrialError(f"weights: expected one for each of {len(self.files)} files, found {len(self.weights)}")
        for weight in self.weights:
            if not 0 < weight <= MOST_WEIGHT:
                raise TrialError(f"weights: expected numbers above 0 and up to {MOST_WEIGHT:g}, found {weight:g}")
        if self.max_seq_len < 2:
            raise TrialError(f"max_seq_len: expected at least 2 tokens, found {self.max_seq_len}")
        if not 0 <= self.validation_share < 1:
            raise TrialError(f"validation_share: expected from 0 to below 1, found {self.validation_share:g}")
        if self.validation_file is not None and self.validation_share:
            raise TrialError("validation_share: a file of its own is named too; choose one of the two")
        for name, known in (("labels", LABELS), ("too_long", TOO_LONG)):
            among(getattr(self, name), known, name)


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """One data file: its kind and sha256, its lines with an example, and how often they stand in an epoch."""

    path: str
    kind: str
    sha256: str
    bytes: int
    lines: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class DataFinding:
    """Something that happened to lines of the data: how often, and the first few places, `FILE: line N`."""

    what: str
    count: int
    places: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """A stretch of an example's text, and whether it is trained on."""

    text: str
    is_target: bool


@dataclass(frozen=True, kw_only=True)
class ConversationPreview:
    """One example to look at: where it comes from, its tokens, and its text in parts."""

    place: str
    tokens: int
    targets: int
    parts: list[DataPart]


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """What will be trained on. Lengths in tokens; `lengths` counts training examples by length, `length_edges` are the
    bins' upper ends. `tokens` and `targets` are those of one epoch, weights counted."""

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
