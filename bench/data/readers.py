"""Reader of data files for trainings and benchmarks: each line checked, unusable lines listed at once or left out.

One JSON object per line, one format per file, recognised by its keys (`bench.data.formats`). Only the standard library.

Every error is an InputError of one line that names the file, the line and the key. Only regular files are read, and at
most `MAX_LINE_BYTES` of a line are held in memory.
"""

import codecs
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring as quoted
from pathlib import Path
from typing import Any

from bench.data.formats import FORMATS, KNOWN_TURN_KEYS, check_keys, check_turn, is_trained, system_turn
from bench.data.inputs import Conversation, DataFacts, InputError
from bench.records import schema
from bench.records.atomic_files import open_regular
from bench.records.training import MAX_SKIPPED_SHARE

MAX_LINE_BYTES = 16 << 20
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
        share = f"{MAX_SKIPPED_SHARE:.0%}".replace("%", " %")
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
    name, digest, size, kind = str(path), hashlib.sha256(), 0, ""
    conversations: list[Conversation] = []
    bad_lines = BadLines(source=name, policy=bad_line_policy)
    for number, line in _read_lines(path):
        digest.update(line)
        size += len(line)
        if not line.strip():
            continue
        try:
            kind, conversation = _parse_line(name, number, line, kind)
        except InputError as error:
            bad_lines.add(error)
        else:
            conversations.append(conversation)
    bad_lines.check(len(conversations) + bad_lines.count)
    if not conversations:
        raise InputError(f"{path}: empty", remedy="name a file with one JSON chat per line")
    return DataFile(
        path=name,
        kind=kind,
        sha256=digest.hexdigest(),
        bytes=size,
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


def _parse_line(file: str, number: int, line: bytes, expected_kind: str) -> tuple[str, Conversation]:
    """Return the kind of a line, which must be `expected_kind` if there is one, and its conversation."""
    location = f"{file}: line {number}"
    document = _parse_object(location, line)
    kind = _detect_kind(location, document)
    if expected_kind and kind != expected_kind:
        raise InputError(
            f"{location}: has the keys of {kind}, earlier lines those of {expected_kind}",
            remedy="use one kind per file",
        )
    data_format = FORMATS[kind]
    unread = set(check_keys(location, document, data_format.known))
    raw_turns = [*system_turn(location, document), *data_format.turns(location, document)]
    turns, untrained = [], []
    for index, raw in enumerate(raw_turns):
        role, content = check_turn(raw, index)
        turns.append((role, content))
        if raw.document is not None:
            unread.update(
                f"{raw.key}[].{key}" for key in check_keys(raw.location, raw.document, KNOWN_TURN_KEYS, is_turn=True)
            )
            if not is_trained(raw.location, raw.document, is_answer=role == "assistant"):
                untrained.append(index)
    return kind, Conversation(
        file=file,
        line=number,
        turns=tuple(turns),
        digest=_digest(location, turns),
        prompt_turns=sum(raw.key == "prompt" for raw in raw_turns),
        untrained=tuple(untrained),
        unread_keys=tuple(sorted(unread)),
    )


def _digest(location: str, turns: Sequence[tuple[str, str]]) -> bytes:
    try:
        # The output of json.dumps without spaces, in a third of its time.
        encoded = f"[{','.join(f'[{quoted(role)},{quoted(text)}]' for role, text in turns)}]".encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{location}: contains a lone surrogate (\\ud800 to \\udfff)", remedy="remove it") from error
    return hashlib.sha256(encoded).digest()


def sha256_of(path: Path) -> str:
    """Hash a data file like `read`, without parsing its lines. Raises InputError."""
    digest = hashlib.sha256()
    for _, line in _read_lines(path):
        digest.update(line)
    return digest.hexdigest()


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with open_regular(path) as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise InputError(
                        f"{path}: line {number}: longer than {MAX_LINE_BYTES >> 20} MiB", remedy="split or remove it"
                    )
                yield number, line
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}", remedy="name a regular file with one JSON object per line"
        ) from error


DECODER = json.JSONDecoder(object_pairs_hook=schema.object_from_pairs)


def _parse_object(location: str, line: bytes) -> dict[str, Any]:
    try:
        document = DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{location}: not UTF-8 text") from error
    except schema.SchemaError as error:
        raise InputError(f"{location}: {error}", remedy="remove one of them") from error
    except (ValueError, RecursionError) as error:
        if line.startswith(codecs.BOM_UTF8):
            raise InputError(
                f"{location}: begins with a byte order mark", remedy="save the file as UTF-8 without one"
            ) from error
        raise InputError(f"{location}: not JSON", remedy="write one complete object per line") from error
    if not isinstance(document, dict):
        raise InputError(
            f"{location}: expected a JSON object with {_expected_keys()}, found {schema.type_name(document)}"
        )
    return document


def _detect_kind(location: str, document: Mapping[str, Any]) -> str:
    kinds = [kind for kind, data_format in FORMATS.items() if all(map(document.__contains__, data_format.keys))]
    if len(kinds) != 1:
        actual = f"the keys of {' and '.join(kinds)}" if kinds else _list_keys(document)
        raise InputError(f"{location}: expected an object with {_expected_keys()}, found {actual}")
    return kinds[0]


def _list_keys(document: Mapping[str, Any]) -> str:
    names = [shorten(key) for key in document]
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"keys {shown}" if names else "no keys"


def shorten(key: str) -> str:
    """Return a key of the data for a message, without control characters and cut after 40 characters."""
    return repr(key)[1:-1][:40]


def _expected_keys() -> str:
    return ", or ".join(" and ".join(data_format.keys) for data_format in FORMATS.values())
