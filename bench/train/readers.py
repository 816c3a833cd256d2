"""Data files to conversations: detects a file's kind, checks each line and rejects tool turns.

Only the standard library. One JSON object per line, one kind per file, recognised by its keys:

    messages              [{"role": "user", "content": ...}, {"role": "assistant", ...}, ...]
    conversations         ShareGPT: [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}, ...]
    instruction, output   Alpaca, with an optional "input"
    prompt, completion    text, or lists of messages; answers in the prompt are not trained on

A "system" text next to them is the first turn. Turns have either pair of keys. `bench.train.keys` has the keys that
decide what is trained on.

Every error is an InputError of one line that names the file, the line and the key. Only regular files are read, and at
most `MAX_LINE_BYTES` of a line are held in memory.
"""

import codecs
import hashlib
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bench.data.inputs import InputError
from bench.records import schema
from bench.train.bad_lines import BadLines
from bench.train.keys import TURN_MARKS, check_keys, is_trained

MAX_LINE_BYTES = 16 << 20
ROLES = ("system", "user", "assistant")
# Other tools' names for the three roles.
ROLE_ALIASES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant"}
TOOL_ROLES = frozenset({"tool", "function", "function_call", "observation", "ipython"})
TURN_KEYS = (("role", "content"), ("from", "value"))  # a turn has either pair
KNOWN_TURN_KEYS = frozenset({*TURN_MARKS, *(key for pair in TURN_KEYS for key in pair)})


@dataclass(frozen=True, kw_only=True)
class RawConversation:
    """One line of a data file: its file and line number, and its turns as (role, content).

    `digest` is the sha256 of the turns: equal for lines of any kind with the same turns. The first `prompt_turns` turns
    are the prompt; answers in it, and turns in `untrained`, which the line excludes, are not trained on.
    """

    file: str
    line: int
    turns: tuple[tuple[str, str], ...]
    digest: bytes
    prompt_turns: int = 0
    untrained: tuple[int, ...] = ()
    unread_keys: tuple[str, ...] = ()

    @property
    def answers(self) -> list[int]:
        """Indices of the turns to train on: the assistant's that are not blank, not in the prompt and not excluded."""
        return [
            index
            for index, (role, text) in enumerate(self.turns)
            if role == "assistant" and text.strip() and index >= self.prompt_turns and index not in self.untrained
        ]

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": role, "content": content} for role, content in self.turns]

    @property
    def location(self) -> str:
        return f"{self.file}: line {self.line}"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """Content of a data file: its kind, its sha256 and its conversations in the file's order.

    `bad_lines` are lines that were skipped.
    """

    path: str
    kind: str
    sha256: str
    bytes: int
    conversations: tuple[RawConversation, ...]
    bad_lines: BadLines


def read(path: Path, bad_line_policy: str = "refuse") -> DataFile:
    """Read every line of a data file. Raises InputError, which lists the lines that cannot be used."""
    name, digest, size, kind = str(path), hashlib.sha256(), 0, ""
    conversations: list[RawConversation] = []
    bad_lines = BadLines(source=name, policy=bad_line_policy)
    with _open_regular(path) as file:
        for number, line in _read_lines(path, file):
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
        raise InputError(f"{path}: empty; name a file with one JSON object per line with {_expected_keys()}")
    return DataFile(
        path=name,
        kind=kind,
        sha256=digest.hexdigest(),
        bytes=size,
        conversations=tuple(conversations),
        bad_lines=bad_lines,
    )


def _parse_line(file: str, number: int, line: bytes, expected_kind: str) -> tuple[str, RawConversation]:
    """Return the kind of a line, which must be `expected_kind` if there is one, and its conversation."""
    location = f"{file}: line {number}"
    document = _parse_object(location, line)
    kind = _detect_kind(location, document)
    if expected_kind and kind != expected_kind:
        raise InputError(
            f"{location}: has the keys of {kind}, earlier lines those of {expected_kind}; use one kind per file"
        )
    reader = KINDS[kind]
    unread = set(check_keys(location, document, reader.known))
    raw_turns = [*_system_turn(location, document), *reader.turns(location, document)]
    turns, untrained = [], []
    for index, raw in enumerate(raw_turns):
        role, content = _check_turn(raw, index)
        turns.append((role, content))
        if raw.document is not None:
            unread.update(
                f"{raw.key}[].{key}" for key in check_keys(raw.location, raw.document, KNOWN_TURN_KEYS, is_turn=True)
            )
            if not is_trained(raw.location, raw.document, is_answer=role == "assistant"):
                untrained.append(index)
    return kind, RawConversation(
        file=file,
        line=number,
        turns=tuple(turns),
        digest=_digest(location, turns),
        prompt_turns=sum(raw.key == "prompt" for raw in raw_turns) if "prompt" in reader.keys else 0,
        untrained=tuple(untrained),
        unread_keys=tuple(sorted(unread)),
    )


def _digest(location: str, turns: Sequence[tuple[str, str]]) -> bytes:
    try:
        # The output of json.dumps without spaces, in a third of its time.
        encoded = f"[{','.join(f'[{quoted(role)},{quoted(text)}]' for role, text in turns)}]".encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{location}: contains a lone surrogate (\\ud800 to \\udfff); remove it") from error
    return hashlib.sha256(encoded).digest()


def sha256_of(path: Path) -> str:
    """Hash a data file like `read`, without parsing its lines. Raises InputError."""
    digest = hashlib.sha256()
    with _open_regular(path) as file:
        for _, line in _read_lines(path, file):
            digest.update(line)
    return digest.hexdigest()


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. O_NONBLOCK, because opening a FIFO without a writer would block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; check its path in the settings") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path}: not a regular file; name a file with one JSON object per line")
    return os.fdopen(descriptor, "rb")


def _read_lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise InputError(f"{path}: line {number}: longer than {MAX_LINE_BYTES >> 20} MiB; split or remove it")
            yield number, line
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; check the disk, or copy the file again") from error


class _DuplicateKey(Exception):
    """A JSON object has a key twice; the argument is the key."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise _DuplicateKey(next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1))
    return document


DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys)


def _parse_object(location: str, line: bytes) -> dict[str, Any]:
    try:
        document = DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{location}: not UTF-8 text") from error
    except _DuplicateKey as error:
        raise InputError(
            f"{location}: {shorten(error.args[0])}: occurs twice in one object; remove one of them"
        ) from error
    except (ValueError, RecursionError) as error:
        if line.startswith(codecs.BOM_UTF8):
            raise InputError(
                f"{location}: begins with a byte order mark; save the file as UTF-8 without one"
            ) from error
        raise InputError(f"{location}: not JSON; write one complete object per line") from error
    if not isinstance(document, dict):
        raise InputError(
            f"{location}: expected a JSON object with {_expected_keys()}, found {schema.type_name(document)}"
        )
    return document


def _detect_kind(location: str, document: Mapping[str, Any]) -> str:
    kinds = [kind for kind, reader in KINDS.items() if all(map(document.__contains__, reader.keys))]
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
    return ", or ".join(" and ".join(reader.keys) for reader in KINDS.values())


# Each kind's turns --------------------------------------------------------------------------------------------------


class RawTurn(NamedTuple):
    """Unchecked turn: where it is, the key of the line it comes from, and its object if that has other keys."""

    location: str
    key: str
    role: Any
    content: Any
    document: Mapping[str, Any] | None = None


def _system_turn(location: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    if document.get("system") not in (None, ""):
        yield RawTurn(f"{location}: system", "system", "system", document["system"])


def _from_messages(location: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    yield from _from_turn_list(location, "messages", document["messages"])


def _from_sharegpt(location: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    yield from _from_turn_list(location, "conversations", document["conversations"])


def _from_alpaca(location: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    instruction, input_text = document["instruction"], document.get("input")
    input_text = "" if input_text is None else input_text
    for key, value in (("instruction", instruction), ("input", input_text)):
        if not isinstance(value, str):
            raise InputError(f"{location}: {key}: expected text, found {schema.type_name(value)}")
    question = f"{instruction}\n\n{input_text}" if input_text.strip() else instruction
    yield RawTurn(f"{location}: instruction", "instruction", "user", question)
    yield RawTurn(f"{location}: output", "output", "assistant", document["output"])


def _from_completion(location: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    for key, role in (("prompt", "user"), ("completion", "assistant")):
        if isinstance(document[key], list):
            yield from _from_turn_list(location, key, document[key])
        else:
            yield RawTurn(f"{location}: {key}", key, role, document[key])


def _from_turn_list(location: str, key: str, turns: Any) -> Iterator[RawTurn]:
    if not isinstance(turns, list) or not turns:
        actual = "an empty list" if turns == [] else schema.type_name(turns)
        raise InputError(f"{location}: {key}: expected a list of turns, found {actual}")
    for index, turn in enumerate(turns):
        turn_location = f"{location}: {key}[{index}]"
        if not isinstance(turn, dict):
            raise InputError(
                f"{turn_location}: expected an object with role and content, found {schema.type_name(turn)}"
            )
        pair, other = TURN_KEYS if "role" in turn or "content" in turn else TURN_KEYS[::-1]
        if any(map(turn.__contains__, other)):
            raise InputError(f"{turn_location}: has keys of role, content and of from, value; keep one pair")
        role, content = map(turn.get, pair)
        yield RawTurn(turn_location, key, role, content, turn if len(turn) > len(pair) else None)


@dataclass(frozen=True)
class KindReader:
    """Reader of a kind's lines: the keys that identify the kind, the function that reads a line, and optional keys."""

    keys: tuple[str, ...]
    turns: Callable[[str, Mapping[str, Any]], Iterator[RawTurn]]
    optional: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        return (*self.keys, *self.optional, "system")


KINDS = {
    "messages": KindReader(("messages",), _from_messages),
    "ShareGPT": KindReader(("conversations",), _from_sharegpt),
    "Alpaca": KindReader(("instruction", "output"), _from_alpaca, ("input",)),
    "prompt and completion": KindReader(("prompt", "completion"), _from_completion),
}


def _check_turn(turn: RawTurn, index: int) -> tuple[str, str]:
    """Return the role and content of a turn: a known role, text, and a system turn only as the first."""
    location, role_name, content = turn.location, turn.role, turn.content
    if not isinstance(role_name, str):
        raise InputError(f"{location}: role: expected text, found {schema.type_name(role_name)}")
    if role_name in TOOL_ROLES:
        raise InputError(f"{location}: role {role_name}: tool turns are not trained on; remove the line")
    role = ROLE_ALIASES.get(role_name, role_name)
    if role not in ROLES:
        raise InputError(f"{location}: role: expected one of {', '.join(ROLES)}, found {role_name[:40]!r}")
    if role == "system" and index:
        raise InputError(f"{location}: role system: only the first turn may be the system's; join the two texts")
    if not isinstance(content, str):
        raise InputError(f"{location}: content: expected text, found {schema.type_name(content)}")
    return role, content
