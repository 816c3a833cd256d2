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
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.records import schema
from bench.records.atomic_files import read_regular, sha256_of
from bench.records.bootstrap import mean_interval
from bench.records.score import SCORE_SUFFIX, ScoredRow, ScoreFault, ScoreMeasure
from bench.records.scratch_folders import scratch_folder
from bench.records.status import escape_controls
from bench.records.training import Training
from bench.workloads.finetune import score_program

MAX_FILE_BYTES = 1 << 20
MAX_REPLY_BYTES = 1 << 14
ROW_SEC, START_SEC = 30.0, 60.0  # deadlines of a row, and of the first one after a start, which imports
WAIT_SEC = 1.0
ROWS_FILE = "rows.jsonl"
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

    @property
    def digest(self) -> str:
        """Digest of everything that decides the scores of given answers."""
        return hashlib.sha256(json.dumps([self.method, self.sha256]).encode()).hexdigest()

    def score(
        self,
        rows: Sequence[AnsweredRow],
        on_wait: Callable[[], None] = lambda: None,
        *,
        row_sec: float = ROW_SEC,
        start_sec: float = START_SEC,
    ) -> list[RowScore]:
        """Score each row. `on_wait` is called at least every second."""
        if self.method in _FUNCTIONS:
            return [_FUNCTIONS[self.method](row) for row in rows]
        results, failures = list[RowScore](), 0
        with scratch_folder("qlora-fleet-score-") as folder:
            while len(results) < len(rows) and failures < MAX_FAILURES:
                try:
                    with _start_process(self, rows, len(results), folder) as process:
                        for reply in _replies(process, on_wait, row_sec, start_sec):
                            results.append(_parse_reply(reply, len(results)))
                            if len(results) == len(rows):
                                break
                except _RowFailed as error:
                    results.append(RowScore(values={}, fault=error.fault, detail=str(error)))
                    failures += 1
        return results + [RowScore(values={}, fault=ScoreFault.GAVE_UP)] * (len(rows) - len(results))


# Methods --------------------------------------------------------------------------------------------------------------


def exact_score(row: AnsweredRow) -> RowScore:
    return RowScore(values={SCORE: float(row.answer.strip() == row.expected.strip())})


def contains_score(row: AnsweredRow) -> RowScore:
    expected = row.expected.strip()
    if not expected:
        return RowScore(values={}, fault=ScoreFault.EXPECTED, detail="it is empty")
    return RowScore(values={SCORE: float(expected in row.answer)})


def json_score(row: AnsweredRow) -> RowScore:
    """Score by field: every value inside objects and lists, by its path, counts once."""
    try:
        expected = _fields(row.expected)
    except ValueError:
        return RowScore(values={}, fault=ScoreFault.EXPECTED, detail="it is not JSON")
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


class _RowFailed(Exception):
    """The process gave no usable reply to a row, and is started again for the next one; `fault` is the cause."""

    def __init__(self, fault: ScoreFault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault


@contextlib.contextmanager
def _start_process(
    scoring: Scoring, rows: Sequence[AnsweredRow], first: int, folder: Path
) -> "Iterator[subprocess.Popen[bytes]]":
    """Start the process over the rows from number `first` on; at the end kill it with its children.

    Raises _RowFailed.
    """
    target = str(Path(scoring.method).resolve())
    lines = [json.dumps({"row": number, **vars(rows[number])}) for number in range(first, len(rows))]
    (folder / ROWS_FILE).write_text("\n".join(lines) + "\n", encoding="ascii")
    try:
        if sha256_of(Path(target)) != scoring.sha256:
            raise _RowFailed(ScoreFault.CRASHED, "the file was changed during the training")
        with (folder / ROWS_FILE).open("rb") as stdin:
            process = subprocess.Popen(
                (sys.executable, "-I", "-X", "utf8", score_program.__file__, target),
                stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, start_new_session=True,
                env={name: os.environ[name] for name in VISIBLE_VARIABLES if name in os.environ}, bufsize=0,
            )  # fmt: skip
    except OSError as error:  # such as a deleted score file
        raise _RowFailed(ScoreFault.CRASHED, f"it cannot be started: {error.strerror}") from error
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and so have its children
                os.killpg(process.pid, signal.SIGKILL)


def _replies(
    process: "subprocess.Popen[bytes]", on_wait: Callable[[], None], row_sec: float, start_sec: float
) -> Iterator[bytes]:
    """Yield the process's lines. Raises _RowFailed at its end, after a deadline, and for a line that is too long."""
    rest, deadline = b"", time.monotonic() + start_sec
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
        while True:
            on_wait()
            if not selector.select(min(WAIT_SEC, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise _RowFailed(ScoreFault.TIMED_OUT, "")
                continue
            chunk = os.read(process.stdout.fileno(), MAX_REPLY_BYTES)  # type: ignore[union-attr]
            if not chunk:
                raise _RowFailed(ScoreFault.CRASHED, _exit_text(process))
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_REPLY_BYTES:
                raise _RowFailed(ScoreFault.OUTPUT, f"a line of more than {MAX_REPLY_BYTES:,} bytes")
            if lines:
                yield from lines
                deadline = time.monotonic() + row_sec


def _parse_reply(reply: bytes, number: int) -> RowScore:
    """Return the score of row `number`. Raises _RowFailed for a reply that the program does not write."""
    with contextlib.suppress(ValueError):
        content = schema.parse_object(reply)
        if content.get("row") != number:  # written by a process that the score file has forked
            raise _RowFailed(ScoreFault.OUTPUT, "a reply to another row")
        if "fault" in content:
            fault, detail = ScoreFault(content["fault"]), escape_controls(str(content.get("detail", "")))
            return RowScore(values={}, fault=fault, detail=detail[: score_program.MAX_DETAIL_CHARS])
        if type(content.get("score")) is float and 0.0 <= content["score"] <= 1.0:
            return RowScore(values={SCORE: content["score"]})
    raise _RowFailed(ScoreFault.OUTPUT, "not a reply of the score's program")


def _exit_text(process: "subprocess.Popen[bytes]") -> str:
    try:
        code = process.wait(1.0)
    except subprocess.TimeoutExpired:
        return "it closed its streams"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


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
    first, last = mean_interval(before, 1.0), mean_interval(after, 1.0)
    changes = [then - now for now, then in zip(before, after, strict=True)]
    change = mean_interval(changes, 1.0 + max(map(abs, changes)))  # from 1 the other end, -1, is 2 away
    return ScoreMeasure(
        name=name,
        rows=len(before),
        before=first.mean,
        before_low=max(0.0, first.low),
        before_high=min(1.0, first.high),
        after=last.mean,
        after_low=max(0.0, last.low),
        after_high=min(1.0, last.high),
        change=change.mean,
        change_low=max(-1.0, change.low),
        change_high=min(1.0, change.high),
    )


def mean_score(scores: Sequence[RowScore]) -> tuple[float, float, float] | None:
    """Return the mean score with its interval over the scored rows; None without one."""
    values = [score.score for score in scores if score.score is not None]
    if not values:
        return None
    mean, low, high = mean_interval(values, 1.0)
    return mean, max(0.0, low), min(1.0, high)


def spread_indices(count: int, wanted: int) -> list[int]:
    """Choose `wanted` of `count` indices at equal distances, all if there are fewer."""
    return list(range(count)) if count <= wanted else [math.floor(index * count / wanted) for index in range(wanted)]


def pair_rows(
    places: Sequence[str],
    before: Sequence[tuple[AnsweredRow, RowScore]],
    after: Sequence[tuple[AnsweredRow, RowScore]],
) -> list[ScoredRow]:
    """Combine the answers and scores before and after, row by row."""
    rows = []
    for number, (location, (first, first_score), (last, last_score)) in enumerate(
        zip(places, before, after, strict=True), 1
    ):
        failed = next((score for score in (last_score, first_score) if score.fault is not None), None)
        rows.append(
            ScoredRow(
                row=number,
                place=location,
                prompt=last.prompt,
                expected=last.expected,
                before=first.answer,
                after=last.answer,
                before_score=first_score.score,
                after_score=last_score.score,
                fault=None if failed is None else failed.fault,
                detail="" if failed is None else failed.detail,
            )
        )
    return rows
