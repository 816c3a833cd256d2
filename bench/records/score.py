"""The score of a training's answers, and the time of what is not a step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bench.records.validation import expect

SCORE_METHODS = ("exact", "contains", "json")
SCORE_SUFFIX = ".py"  # ends a score file's name


def check_score(score: str | None, *, is_scorable: bool) -> None:
    """Check the method of a training's score. Raises FieldError.

    `is_scorable`: data are held out, and the answers in them are marked.
    """
    is_known = score is None or score in SCORE_METHODS or score.endswith(SCORE_SUFFIX)
    expect(is_known, "score", f"{', '.join(SCORE_METHODS)} or a Python file (*{SCORE_SUFFIX}), found {score!r}")
    expect(score is None or is_scorable, "score", "null without held-out data, and if label_mask is not assistant")


class ScoreFault(str, Enum):
    """Cause of a row without a score."""

    _value_: str
    label: str

    def __new__(cls, value: str, label: str = "") -> ScoreFault:
        member = str.__new__(cls, value)
        member._value_, member.label = value, label
        return member

    EXPECTED = "expected", "the data's own answer cannot be compared"
    RAISED = "raised", "the score file raised an exception"
    NOT_A_NUMBER = "not_a_number", "the score is not a number from 0 to 1"
    CRASHED = "crashed", "the score's process ended"
    TIMED_OUT = "timed_out", "the score's deadline passed"
    OUTPUT = "output", "the score's process wrote too much"
    GAVE_UP = "gave_up", "the score's process failed too often"


@dataclass(frozen=True, kw_only=True)
class ScoredRow:
    """A held-out prompt with its answers and their scores; `fault` is the cause of a missing score.

    `row` counts from 1, `place` is the data line. Texts are those of the answers, without control tokens.
    """

    row: int
    place: str  # vocabulary: field of a stored record
    prompt: str
    expected: str
    before: str
    after: str
    before_score: float | None
    after_score: float | None
    fault: ScoreFault | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class ScoreMeasure:
    """The mean of a score before and after the training, 0 to 1, with 95 % intervals over rows.

    `change` is the mean of the paired differences over the same rows. Rows without a score are left out of all three.
    """

    name: str
    rows: int
    before: float
    before_low: float
    before_high: float
    after: float
    after_low: float
    after_high: float
    change: float
    change_low: float
    change_high: float


@dataclass(frozen=True, kw_only=True)
class TrainingScore:
    """The score of a training's answers to held-out prompts.

    `measures` is empty if no row has a score. `before`, `after` and `places` have all rows; `shown` are a few of them
    with their texts, `unscored` the first without a score. `failure` is why there are no answers.
    """

    method: str
    measures: list[ScoreMeasure]
    places: list[str]
    before: list[float | None]
    after: list[float | None]
    shown: list[ScoredRow]
    unscored: list[ScoredRow]
    unscored_rows: int
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """Seconds of all attempts' ranks, until the last checkpoint: loading, evaluations, and answers and their scores.

    `checkpoint_sec` is the time that the steps waited for checkpoints.
    """

    loading_sec: float = 0.0
    evaluation_sec: float = 0.0
    checkpoint_sec: float = 0.0
    score_sec: float = 0.0
