"""Reader of data files for trainings and benchmarks: each line checked, unusable lines listed at once.

A line is a row of a file of any type (`bench.data.file_types`). One format per file, recognised by its keys
(`bench.data.formats`).

Every error is an InputError of one line that names the file, the line or row, and the key.
"""

import hashlib
import heapq
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bench.data import file_types
from bench.data.conversations import parse_conversation
from bench.data.file_types import ColumnNames, DataRows, Row
from bench.data.formats import detect_format
from bench.data.inputs import Conversation, DataFacts, InputError
from bench.records.training import DEFAULT_DATA_OPTIONS, DataOptions

MAX_LISTED = 20
MAX_SAMPLES = 50_000
MAX_REASON_CHARS = 240
MAX_NUMBERS = 5  # lines that are listed for a reason
NUMBERED_PLACE = re.compile(r"^(.*?\b(?:line|row) )(\d+)")


class BadLines:
    """Errors of the unusable lines of `source`."""

    def __init__(self, source: str) -> None:
        self._source, self._errors = source, list[InputError]()

    def add(self, error: InputError) -> None:
        """Add the error of a line. Raises InputError, which lists all, once there are `MAX_LISTED`."""
        self._errors.append(error)
        if len(self._errors) == MAX_LISTED:
            raise self._error(f"at least {MAX_LISTED}")

    def check(self) -> None:
        """Raise InputError if there is a line."""
        if self._errors:
            raise self._errors[0] if len(self._errors) == 1 else self._error(str(len(self._errors)))

    def _error(self, count: str) -> InputError:
        prefix, remedies = f"{self._source}: ", {error.remedy for error in self._errors}
        listed = " | ".join(_join_equal(error.problem.removeprefix(prefix) for error in self._errors))
        remedy = "correct or remove them" if len(remedies) > 1 else min(remedies)
        return InputError(f"{prefix}{count} lines cannot be used: {listed}", remedy=remedy or "correct or remove them")


def _join_equal(reasons: Iterable[str]) -> list[str]:
    """Return each reason once, with the numbers of the first lines or rows that it applies to."""
    numbers: dict[tuple[str, str], list[str]] = {}
    for reason in reasons:
        _, before, number, after = NUMBERED_PLACE.split(reason, maxsplit=1)
        numbers.setdefault((before, after), []).append(number)
    listed = []
    for (before, after), lines in numbers.items():
        more = f" and {len(lines) - MAX_NUMBERS} more" if len(lines) > MAX_NUMBERS else ""
        listed.append(f"{before}{', '.join(lines[:MAX_NUMBERS])}{more}{after}"[:MAX_REASON_CHARS])
    return listed


class DataFile:
    """A data file, or all files that match a pattern: its usable lines, in the files' order, read by each iteration.

    `kind`, `lines` and `sha256` are those of the first iteration, once it is complete. A later one raises
    InputError if the file has changed since. The sha256 of a pattern is that of its files' names and digests.
    """

    def __init__(self, path: Path | str, options: DataOptions = DEFAULT_DATA_OPTIONS) -> None:
        self.path, self.kind, self.lines, self.sha256 = str(path), "", 0, ""
        self._files, self._names = file_types.expand(self.path), ColumnNames(options.columns)

    def __iter__(self) -> Iterator[Conversation]:
        kind, lines, digests = "", 0, dict[str, str]()
        bad_lines = BadLines(self.path)
        for file in self._files:
            rows = DataRows(file, self._names)
            for number, row in rows:
                try:
                    kind, conversation = self._parse_row(rows, number, row, kind)
                except InputError as error:
                    bad_lines.add(error)
                else:
                    lines += 1
                    yield conversation
            digests[str(file)] = rows.sha256
        self._names.check_used(self.path)
        bad_lines.check()
        if not lines:
            raise InputError(f"{self.path}: empty", remedy="name a file with conversations")
        sha256 = _combined(self.path, digests)
        if self.sha256 not in ("", sha256):
            raise InputError(f"{self.path}: changed while it was read", remedy="try again once it is written")
        self.kind, self.lines, self.sha256 = kind, lines, sha256

    def _parse_row(self, rows: DataRows, number: int, row: Row, expected_kind: str) -> tuple[str, Conversation]:
        """Return the kind of a row, which must be `expected_kind` if there is one, and its conversation."""
        if isinstance(row, InputError):
            raise row
        line = f"{rows.unit} {number}"
        location = f"{rows.path}: {line}"
        data_format = detect_format(location, row)
        if expected_kind not in ("", data_format.name):
            raise InputError(
                f"{location}: has the keys of {data_format.name}, earlier ones those of {expected_kind}",
                remedy="use one kind per file",
            )
        return data_format.name, parse_conversation(row, data_format, file=str(rows.path), line=line)


def read(path: Path | str, options: DataOptions = DEFAULT_DATA_OPTIONS) -> DataFile:
    """Check every line of a data file. Raises InputError, which lists the lines that cannot be used."""
    data = DataFile(path, options)
    for _ in data:
        pass
    return data


def sha256_of(path: str) -> str:
    """Hash a data file, or all files that match a pattern, as `read` does, without their rows. Raises InputError."""
    return _combined(path, {str(file): file_types.sha256_of(file) for file in file_types.expand(path)})


def _combined(path: str, digests: Mapping[str, str]) -> str:
    if list(digests) == [path]:
        return digests[path]
    lines = (f"{Path(name).name}\0{digest}\n" for name, digest in digests.items())
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def read_data(path: Path, options: DataOptions = DEFAULT_DATA_OPTIONS) -> tuple[DataFacts, list[Conversation]]:
    """Read the data file of a benchmark. Conversations without an answer are counted as skipped. Raises InputError.

    Of more than `MAX_SAMPLES` conversations those with the smallest digests are returned: a benchmark needs fewer.
    """
    data, count = DataFile(path, options), itertools.count()
    answered = (conversation for conversation in data if conversation.answers)
    numbered = zip(answered, count, strict=False)  # `answered` ends first, so `count` continues with their number
    kept = heapq.nsmallest(MAX_SAMPLES, numbered, key=lambda item: item[0].digest)
    if not kept:
        raise InputError(f"{path}: none of {data.lines} chats has an answer", remedy="name a file with answers")
    samples = next(count)
    facts = DataFacts(sha256=data.sha256, samples=samples, skipped=data.lines - samples)
    return facts, [conversation for conversation, _ in sorted(kept, key=lambda item: item[1])]
