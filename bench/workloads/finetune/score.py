"""Scores of answers against the data's own answers, and their summary before and after a training.

| method | score of a row |
|---|---|
| exact | 1 if the texts are equal, apart from white space around them |
| contains | 1 if the answer contains the data's answer |
| json | the share of equal fields among all fields of both; 0 if the answer is not JSON |
| a Python file | what its function `score(prompt, answer, expected)` returns, 0 to 1 |

A file runs in a process of its own (`score_program`) without our environment, with a deadline for each
row. A row that crashes it, hangs, writes too much or returns no number from 0 to 1 has no score, but a cause. This
module imports only the standard library.
"""

import contextlib
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.records import schema
from bench.records.atomic_files import read_regular, sha256_of
from bench.records.bootstrap import MeanInterval, mean_interval
from bench.records.score import SCORE_SUFFIX, ScoredRow, ScoreFault, ScoreMeasure
from bench.records.scratch_folders import scratch_folder
from bench.records.status import escape_controls
from bench.records.training import Training
from bench.workloads.finetune import score_program

MAX_FILE_BYTES = 1 << 20
MAX_REPLY_BYTES = 1 << 14  # for each row, on average
ROW_SEC, START_SEC = 30.0, 60.0  # deadlines of a row, and of the first one after a start, which imports
WAIT_SEC = 0.1
MAX_FAILURES = 5  # ends of the process after which the remaining rows are given up
VISIBLE_VARIABLES = ("PATH", "LANG", "LC_ALL", "TMPDIR")
SHOWN_ROWS, NAMED_ROWS = 8, 20
SCORE, VALID, ALL_FIELDS = "score", "valid JSON", "all fields equal"


@dataclass(frozen=True, kw_only=True)
class AnsweredRow:
    """A prompt with an answer to it and the data's own, as texts."""

    prompt: str
    answer: str
    expected: str


@dataclass(frozen=True, kw_only=True)
class RowScore:
    """The scores of a row by measure, the first being the score itself; or, with none, the cause."""

    values: dict[str, float]
    fault: ScoreFault | None = None
    detail: str = ""

    @property
    def score(self) -> float | None:
        return next(iter(self.values.values()), None)


@dataclass(frozen=True, kw_only=True)
class ScoredAnswers:
    """Answers and their scores in the order of the prompts; both are empty after a `failure`.

    `key` is the digest of prompts, base and scoring method.
    """

    key: str
    answers: list[str]
    scores: list[RowScore]
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """A checked method: its name, or a file's path with its sha256."""

    method: str
    sha256: str | None

    @classmethod
    def load(cls, training: Training) -> "Scoring | None":
        """Check `train.score`; None if it is not set. Raises InputError for an unusable file."""
        method = training.score
        if method is None:
            return None
        if not method.endswith(SCORE_SUFFIX):
            return cls(method=method, sha256=None)
        try:
            content = read_regular(Path(method), max_bytes=MAX_FILE_BYTES)
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"{method}: the score file cannot be read: {reason}", remedy="set train.score") from error
        try:
            compile(content, method, "exec")
        except (SyntaxError, ValueError, RecursionError) as error:
            raise InputError(f"{method}: the score file is not Python: {error}") from error
        return cls(method=method, sha256=hashlib.sha256(content).hexdigest())

    def score(self, rows: Sequence[AnsweredRow], on_wait: Callable[[], None] = lambda: None) -> list[RowScore]:
        """Score each row. `on_wait` is called at least every second."""
        if self.method in _FUNCTIONS:
            return [_FUNCTIONS[self.method](row) for row in rows]
        results = list[RowScore]()
        with scratch_folder("qlora-fleet-score-") as folder:
            for _ in range(MAX_FAILURES):
                if len(results) < len(rows):
                    results += self._score_by_file(rows, len(results), folder, on_wait)
        return results + [_unscored(ScoreFault.GAVE_UP)] * (len(rows) - len(results))

    def _score_by_file(
        self, rows: Sequence[AnsweredRow], first: int, folder: Path, on_wait: Callable[[], None]
    ) -> list[RowScore]:
        """Score the rows from number `first` on, in a process of their own, until one of them ends it."""
        target, source, replies = str(Path(self.method).resolve()), folder / "rows.jsonl", folder / "replies.jsonl"
        lines = [json.dumps({"row": number, **vars(rows[number])}) for number in range(first, len(rows))]
        source.write_text("\n".join(lines) + "\n", encoding="ascii")
        try:
            if sha256_of(Path(target)) != self.sha256:
                return [_unscored(ScoreFault.CRASHED, "the file was changed during the training")]
            with source.open("rb") as stdin, replies.open("wb") as stdout:
                process = subprocess.Popen(
                    (sys.executable, "-I", "-X", "utf8", score_program.__file__, target),
                    stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL, cwd=folder, start_new_session=True,
                    env={name: os.environ[name] for name in VISIBLE_VARIABLES if name in os.environ},
                )  # fmt: skip
        except OSError as error:  # such as a deleted score file
            return [_unscored(ScoreFault.CRASHED, f"it cannot be started: {error.strerror}")]
        max_bytes = MAX_REPLY_BYTES * len(lines)
        with process:
            try:
                end = _wait_for_end(process, replies, max_bytes, on_wait)
            finally:
                with contextlib.suppress(ProcessLookupError):  # it has ended, and so have its children
                    os.killpg(process.pid, signal.SIGKILL)
        scores = list[RowScore]()
        with replies.open("rb") as file:
            whole_lines = file.read(max_bytes).split(b"\n")[:-1]
        for number, line in enumerate(whole_lines[: len(lines)], first):
            scores.append(_parse_reply(line, number))
            if scores[-1].fault is ScoreFault.OUTPUT:
                return scores
        return scores if len(scores) == len(lines) else [*scores, end]


# Methods --------------------------------------------------------------------------------------------------------------


def exact_score(row: AnsweredRow) -> RowScore:
    return RowScore(values={SCORE: float(row.answer.strip() == row.expected.strip())})


def contains_score(row: AnsweredRow) -> RowScore:
    expected = row.expected.strip()
    if not expected:
        return _unscored(ScoreFault.EXPECTED, "it is empty")
    return RowScore(values={SCORE: float(expected in row.answer)})


def json_score(row: AnsweredRow) -> RowScore:
    """Score by field: every value inside objects and lists, by its path, counts once."""
    try:
        expected = _fields(row.expected)
    except ValueError:
        return _unscored(ScoreFault.EXPECTED, "it is not JSON")
    try:
        actual = _fields(row.answer)
    except ValueError:
        return RowScore(values={SCORE: 0.0, VALID: 0.0, ALL_FIELDS: 0.0})
    equal = sum(path in actual and _is_same(actual[path], value) for path, value in expected.items())
    share = equal / len(expected.keys() | actual.keys())
    return RowScore(values={SCORE: share, VALID: 1.0, ALL_FIELDS: float(share == 1.0)})


def _fields(text: str) -> dict[tuple[str | int, ...], Any]:
    """Parse JSON into its values by path; an empty object or list is a value. Raises ValueError."""
    fields: dict[tuple[str | int, ...], Any] = {}
    pending: list[tuple[tuple[str | int, ...], Any]] = [((), schema.parse(text))]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict) and value:
            pending += [((*path, key), item) for key, item in value.items()]
        elif isinstance(value, list) and value:
            pending += [((*path, index), item) for index, item in enumerate(value)]
        else:
            fields[path] = value
    return fields


def _is_same(first: Any, second: Any) -> bool:
    """Compare values of JSON: true is not 1, but 1.0 is."""
    return isinstance(first, bool) is isinstance(second, bool) and bool(first == second)


_FUNCTIONS: Mapping[str, Callable[[AnsweredRow], RowScore]] = {
    "exact": exact_score,
    "contains": contains_score,
    "json": json_score,
}


def _wait_for_end(
    process: "subprocess.Popen[bytes]", replies: Path, max_bytes: int, on_wait: Callable[[], None]
) -> RowScore:
    """Wait for the process's end, or for a row's deadline; return the next row's fault."""
    deadline, size = time.monotonic() + START_SEC, 0
    while (code := process.poll()) is None:
        on_wait()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(WAIT_SEC)
        before, size = size, replies.stat().st_size
        if size > max_bytes:
            return _unscored(ScoreFault.OUTPUT, f"more than {max_bytes:,} bytes")
        if size != before:
            deadline = time.monotonic() + ROW_SEC
        elif time.monotonic() > deadline:
            return _unscored(ScoreFault.TIMED_OUT)
    return _unscored(ScoreFault.CRASHED, f"exit code {code}" if code >= 0 else f"signal {-code}")


def _parse_reply(reply: bytes, number: int) -> RowScore:
    """Return the score of row `number`; the fault OUTPUT for a reply that the program does not write."""
    with contextlib.suppress(ValueError):
        content = schema.parse_object(reply)
        if content.get("row") != number:  # written by a process that the score file has forked
            return _unscored(ScoreFault.OUTPUT, "a reply to another row")
        if "fault" in content:
            detail = escape_controls(str(content.get("detail", "")))
            return _unscored(ScoreFault(content["fault"]), detail[: score_program.MAX_DETAIL_CHARS])
        if type(content.get("score")) is float and 0.0 <= content["score"] <= 1.0:
            return RowScore(values={SCORE: content["score"]})
    return _unscored(ScoreFault.OUTPUT, "not a reply of the score's program")


def _unscored(fault: ScoreFault, detail: str = "") -> RowScore:
    return RowScore(values={}, fault=fault, detail=detail)


# Summary --------------------------------------------------------------------------------------------------------------


def compare(before: Sequence[RowScore], after: Sequence[RowScore]) -> list[ScoreMeasure]:
    """Summarize each measure over the rows that both have scored, in pairs; [] without such a row."""
    pairs = [(first.values, second.values) for first, second in zip(before, after, strict=True)]
    pairs = [(first, second) for first, second in pairs if first and second]
    return [
        _measure(name, [first[name] for first, _ in pairs], [second[name] for _, second in pairs])
        for name in (pairs[0][0] if pairs else ())
    ]


def _measure(name: str, before: Sequence[float], after: Sequence[float]) -> ScoreMeasure:
    first, last = _mean_share(before), _mean_share(after)
    changes = [then - now for now, then in zip(before, after, strict=True)]
    change = mean_interval(changes, 1.0 + max(map(abs, changes)))  # from 1 the other end, -1, is 2 away
    return ScoreMeasure(
        name=name,
        rows=len(before),
        before=first.mean,
        before_low=first.low,
        before_high=first.high,
        after=last.mean,
        after_low=last.low,
        after_high=last.high,
        change=change.mean,
        change_low=max(-1.0, change.low),
        change_high=min(1.0, change.high),
    )


def mean_score(scores: Sequence[RowScore]) -> float | None:
    """Return the mean score of the scored rows; None without one."""
    values = [score.score for score in scores if score.score is not None]
    return math.fsum(values) / len(values) if values else None


def _mean_share(values: Sequence[float]) -> MeanInterval:
    mean, low, high = mean_interval(values, 1.0)
    return MeanInterval(mean, max(0.0, low), min(1.0, high))


def spread_indices(count: int, wanted: int) -> list[int]:
    """Choose `wanted` of `count` indices at equal distances, all if there are fewer."""
    return list(range(count)) if count <= wanted else [math.floor(index * count / wanted) for index in range(wanted)]


def pair_row(
    number: int, location: str, row: AnsweredRow, before: str, before_score: RowScore, after_score: RowScore
) -> ScoredRow:
    """Combine the answers and scores of a row; `row` has the answer after the training."""
    failed = next((score for score in (after_score, before_score) if score.fault is not None), RowScore(values={}))
    return ScoredRow(
        row=number,
        place=location,
        prompt=row.prompt,
        expected=row.expected,
        before=before,
        after=row.answer,
        before_score=before_score.score,
        after_score=after_score.score,
        fault=failed.fault,
        detail=failed.detail,
    )
