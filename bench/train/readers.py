"""Data files to conversations: detects a file's kind, checks each line and rejects tool turns.

Only the standard library. One JSON object per line, one kind per file, recognised by its keys:

    messages              [{"role": "user", "content": ...}, {"role": "assistant", ...}, ...]
    conversations         ShareGPT: [{"from": "human", "value": ...}, {"from": "gpt", ...}, ...]
    instruction, output   Alpaca, with an optional "input" and "system"
    prompt, completion    text, or lists of messages

Every error is an InputError of one line that names the file, the line and the key. Only regular files are read, and at
most `MAX_LINE_BYTES` of a line are held in memory.
"""

import codecs
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from pathlib import Path
from typing import Any, BinaryIO

from bench.data.inputs import InputError
from bench.records import schema

MAX_LINE_BYTES = 16 << 20
ROLES = ("system", "user", "assistant")
# Other tools' names for the three roles.
ROLE_ALIASES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant"}
TOOL_ROLES = frozenset({"tool", "function", "function_call", "observation", "ipython"})
TOOL_KEYS = frozenset({"tool_calls", "tool_call_id", "function_call"})


@dataclass(frozen=True, kw_only=True)
class RawConversation:
    """One line of a data file: its file and line number, and its turns as (role, content).

    `digest` is the sha256 of the turns: equal for lines of any kind with the same turns.
    """

    file: str
    line: int
    turns: tuple[tuple[str, str], ...]
    digest: bytes

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": role, "content": content} for role, content in self.turns]

    @property
    def location(self) -> str:
        return f"{self.file}: line {self.line}"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """Content of a data file: its kind, its sha256 and its conversations in the file's order."""

    path: str
    kind: str
    sha256: str
    bytes: int
    conversations: tuple[RawConversation, ...]


def read(path: Path) -> DataFile:
    """Read every line of a data file. Raises InputError."""
    name, digest, size, kind = str(path), hashlib.sha256(), 0, ""
    conversations: list[RawConversation] = []
    with _open_regular(path) as file:
        for number, line in _read_lines(path, file):
            digest.update(line)
            size += len(line)
            if not line.strip():
                continue
            location = f"{name}: line {number}"
            document = _parse_object(location, line)
            line_kind = _detect_kind(location, document)
            if kind and line_kind != kind:
                raise InputError(
                    f"{location}: has the keys of {line_kind}, earlier lines those of {kind}; use one kind per file"
                )
            kind = line_kind
            _, turns_of = KINDS[kind]
            turns = tuple(_check_turns(turns_of(location, document)))
            conversations.append(RawConversation(file=name, line=number, turns=turns, digest=_digest(location, turns)))
    if not conversations:
        raise InputError(f"{path}: empty; name a file with one JSON object per line with {_expected_keys()}")
    return DataFile(
        path=str(path), kind=kind, sha256=digest.hexdigest(), bytes=size, conversations=tuple(conversations)
    )


def _digest(location: str, turns: tuple[tuple[str, str], ...]) -> bytes:
    try:
        # The output of json.dumps without spaces, in a third of its time.
        encoded = f"[{','.join(f'[{quoted(role)},{quoted(text)}]' for role, text in turns)}]".encode()
    except UnicodeEncodeError:
        raise InputError(f"{location}: contains a lone surrogate (\\ud800 to \\udfff); remove it") from None
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
        raise InputError(f"{path}: cannot be read: {error.strerror}; check its path in the settings") from None
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
        raise InputError(f"{path}: cannot be read: {error.strerror}; check the disk, or copy the file again") from None


def _parse_object(location: str, line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{location}: not UTF-8 text") from None
    except (ValueError, RecursionError):
        if line.startswith(codecs.BOM_UTF8):
            raise InputError(f"{location}: begins with a byte order mark; save the file as UTF-8 without one") from None
        raise InputError(f"{location}: not JSON; write one complete object per line") from None
    if not isinstance(document, dict):
        raise InputError(f"{location}: expected a JSON object with {_expected_keys()}, found {schema.kind(document)}")
    return document


def _detect_kind(location: str, document: Mapping[str, Any]) -> str:
    kinds = [kind for kind, (keys, _) in KINDS.items() if all(map(document.__contains__, keys))]
    if len(kinds) != 1:
        actual = f"the keys of {' and '.join(kinds)}" if kinds else _list_keys(document)
        raise InputError(f"{location}: expected an object with {_expected_keys()}, found {actual}")
    return kinds[0]


def _list_keys(document: Mapping[str, Any]) -> str:
    names = [repr(key)[1:-1][:40] for key in document]
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"keys {shown}" if names else "no keys"


def _expected_keys() -> str:
    return ", or ".join(" and ".join(keys) for keys, _ in KINDS.values())


# Each kind's turns, as (location, role, content) --------------------------------------------------------------------

RawTurn = tuple[str, Any, Any]


def _from_messages(location: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    yield from _from_turn_list(f"{location}: messages", document["messages"], "role", "content")


def _from_sharegpt(location: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    if document.get("system"):
        yield f"{location}: system", "system", document["system"]
    yield from _from_turn_list(f"{location}: conversations", document["conversations"], "from", "value")


def _from_alpaca(location: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    if document.get("history"):
        raise InputError(f"{location}: history: not supported in Alpaca lines; write the turns as messages")
    if document.get("system"):
        yield f"{location}: system", "system", document["system"]
    instruction, input_text = document["instruction"], document.get("input", "")
    for key, value in (("instruction", instruction), ("input", input_text)):
        if not isinstance(value, str):
            raise InputError(f"{location}: {key}: expected text, found {schema.kind(value)}")
    yield f"{location}: instruction", "user", f"{instruction}\n\n{input_text}" if input_text.strip() else instruction
    yield f"{location}: output", "assistant", document["output"]


def _from_completion(location: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    for key, role in (("prompt", "user"), ("completion", "assistant")):
        if isinstance(document[key], list):
            yield from _from_turn_list(f"{location}: {key}", document[key], "role", "content")
        else:
            yield f"{location}: {key}", role, document[key]


def _from_turn_list(location: str, turns: Any, role: str, content: str) -> Iterator[RawTurn]:
    if not isinstance(turns, list) or not turns:
        actual = "an empty list" if turns == [] else schema.kind(turns)
        raise InputError(f"{location}: expected a list of turns, found {actual}")
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise InputError(
                f"{location}[{index}]: expected an object with {role} and {content}, found {schema.kind(turn)}"
            )
        if tools := sorted(key for key in TOOL_KEYS.intersection(turn) if turn[key]):
            raise InputError(f"{location}[{index}]: {tools[0]}: tool turns are not trained on; remove the line")
        yield f"{location}[{index}]", turn.get(role), turn.get(content)


# By kind: the keys that identify it, and the function that reads its lines.
KINDS: dict[str, tuple[tuple[str, ...], Callable[[str, Mapping[str, Any]], Iterator[RawTurn]]]] = {
    "messages": (("messages",), _from_messages),
    "ShareGPT": (("conversations",), _from_sharegpt),
    "Alpaca": (("instruction", "output"), _from_alpaca),
    "prompt and completion": (("prompt", "completion"), _from_completion),
}


def _check_turns(raw_turns: Iterator[RawTurn]) -> Iterator[tuple[str, str]]:
    """Check the turns of one line: known roles, text contents, and a system turn only as the first."""
    for index, (location, role_name, content) in enumerate(raw_turns):
        if not isinstance(role_name, str):
            raise InputError(f"{location}: role: expected text, found {schema.kind(role_name)}")
        if role_name in TOOL_ROLES:
            raise InputError(f"{location}: role {role_name}: tool turns are not trained on; remove the line")
        role = ROLE_ALIASES.get(role_name, role_name)
        if role not in ROLES:
            raise InputError(f"{location}: role: expected one of {', '.join(ROLES)}, found {role_name[:40]!r}")
        if role == "system" and index:
            raise InputError(f"{location}: role system: only the first turn may be the system's; join the two texts")
        if not isinstance(content, str):
            raise InputError(f"{location}: content: expected text, found {schema.kind(content)}")
        yield role, content
