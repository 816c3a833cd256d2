"""Reader of data files for trainings and benchmarks: each line checked, unusable lines listed at once or left out.

A line is a row of a file of any type (`bench.data.file_types`). One format per file, recognised by its keys
(`bench.data.formats`). Only the standard library.

Every error is an InputError of one line that names the file, the line or row, and the key.
"""

import codecs
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.data.conversations import parse_conversation
from bench.data.file_types import DataRows, Row, parse_json
from bench.data.formats import FORMATS, detect_kind, expected_keys
from bench.data.inputs import Conversation, DataFacts, InputError
from bench.records import schema
from bench.records.training import MAX_SKIPPED_SHARE
from bench.records.units import format_percent

MAX_LISTED = 20
MAX_REASON_CHARS = 160


@dataclass(kw_only=True)
class BadLines:
    """Unusable lines of `source`: their number and the errors of the first `MAX_LISTED`.

    `policy`: "refuse" raises an error that lists them, "skip" leaves them out if they are few. None refuses them, too,
    where the setting does not apply.
    """

    source: str
    policy: str | None = "refuse"
    count: int = 0
    errors: list[InputError] = field(default_factory=list)

    def add(self, error: InputError, *, lines: int | None = None) -> None:
        """Add the error of a line; `lines` is the number of all lines, if it is known.

        Raises InputError once the list is full or no more lines may be left out.
        """
        self.count += 1
        if len(self.errors) < MAX_LISTED:
            self.errors.append(error)
        if self.policy != "skip" and self.count == MAX_LISTED:
            raise self._error(f"at least {MAX_LISTED}")
        if lines is not None:
            self.check(lines, is_final=False)

    def check(self, lines: int, *, is_final: bool = True) -> None:
        """Raise InputError if these lines, of `lines` in all, may not be left out."""
        if self.policy != "skip" and self.count and is_final:
            raise self.errors[0] if self.count == 1 else self._error(str(self.count))
        if self.policy == "skip" and self.count > int(lines * MAX_SKIPPED_SHARE):
            raise self._error(f"{self.count} of {lines}" if is_final else f"more than {self.count - 1} of {lines}")

    def places(self) -> list[str]:
        """Return a line for each listed error: file, line and reason."""
        return [error.problem for error in self.errors]

    def _error(self, count: str) -> InputError:
        prefix = f"{self.source}: "
        reasons = [text.removeprefix(prefix)[:MAX_REASON_CHARS] for text in self.places()[:MAX_LISTED]]
        share = format_percent(MAX_SKIPPED_SHARE)
        remedies = {
            "refuse": f", or set train.bad_lines: skip, which leaves out at most {share} of the lines",
            "skip": f", because train.bad_lines: skip leaves out at most {share} of the lines",
            None: "",
        }
        listed, remedy = " | ".join(reasons), remedies[self.policy]
        return InputError(f"{prefix}{count} lines cannot be used: {listed}", remedy=f"correct or remove them{remedy}")


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """Content of a data file: its kind, its sha256 and its conversations in the file's order.

    `bad_lines` are lines that were skipped.
    """

    path: str
    kind: str
    sha256: str
    bytes: int
    conversations: tuple[Conversation, ...]
    bad_lines: BadLines


def read(path: Path, bad_line_policy: str | None = "refuse") -> DataFile:
    """Read every line of a data file. Raises InputError, which lists the lines that cannot be used."""
    name, kind, rows = str(path), "", DataRows(path)
    conversations: list[Conversation] = []
    bad_lines = BadLines(source=name, policy=bad_line_policy)
    for number, row in rows:
        if isinstance(row, bytes) and not row.strip():
            continue
        try:
            kind, conversation = _parse_row(name, rows.unit, number, row, kind)
        except InputError as error:
            bad_lines.add(error)
        else:
            conversations.append(conversation)
    bad_lines.check(len(conversations) + bad_lines.count)
    if not conversations:
        raise InputError(f"{path}: empty", remedy="name a file with conversations")
    return DataFile(
        path=name,
        kind=kind,
        sha256=rows.sha256,
        bytes=rows.bytes,
        conversations=tuple(conversations),
        bad_lines=bad_lines,
    )


def read_data(path: Path) -> tuple[DataFacts, list[Conversation]]:
    """Read the data file of a benchmark. Conversations without an answer are counted as skipped. Raises InputError."""
    data = read(path, None)
    usable = [conversation for conversation in data.conversations if conversation.answers]
    if not usable:
        raise InputError(
            f"{path}: none of {len(data.conversations)} chats has an answer", remedy="name a file with answers"
        )
    skipped = len(data.conversations) - len(usable)
    return DataFacts(path=data.path, sha256=data.sha256, samples=len(usable), skipped=skipped), usable


def _parse_row(file: str, unit: str, number: int, row: Row, expected_kind: str) -> tuple[str, Conversation]:
    """Return the kind of a row, which must be `expected_kind` if there is one, and its conversation."""
    if isinstance(row, InputError):
        raise row
    location = f"{file}: {unit} {number}"
    document = _parse_object(location, row) if isinstance(row, bytes) else row
    kind = detect_kind(location, document)
    if expected_kind and kind != expected_kind:
        raise InputError(
            f"{location}: has the keys of {kind}, earlier ones those of {expected_kind}",
            remedy="use one kind per file",
        )
    return kind, parse_conversation(document, FORMATS[kind], file=file, line=number, unit=unit)


def _parse_object(location: str, line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{location}: not UTF-8 text") from error
    if line.startswith(codecs.BOM_UTF8):
        raise InputError(f"{location}: begins with a byte order mark", remedy="save the file as UTF-8 without one")
    document = parse_json(location, text)
    if not isinstance(document, dict):
        raise InputError(
            f"{location}: expected a JSON object with {expected_keys()}, found {schema.type_name(document)}"
        )
    return document
