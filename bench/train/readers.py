"""Data files to conversations: which of four kinds a file is, each line checked, tool turns refused by name.

Standard library alone. One JSON object a line, one kind a file, recognised by its keys:

    messages              [{"role": "user", "content": ...}, {"role": "assistant", ...}, ...]
    conversations         ShareGPT: [{"from": "human", "value": ...}, {"from": "gpt", ...}, ...]
    instruction, output   Alpaca, with an optional "input" and "system"
    prompt, completion    text, or lists of messages

Every refusal is an InputError of one line that names the file, the line and the key. Only regular files are read, and
no line longer than `MOST_LINE_BYTES` is held in memory.
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

MOST_LINE_BYTES = 16 << 20
ROLES = ("system", "user", "assistant")
# Names that other tools' files use for the same three roles.
OTHER_NAMES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant"}
TOOL_ROLES = frozenset({"tool", "function", "function_call", "observation", "ipython"})
TOOL_KEYS = frozenset({"tool_calls", "tool_call_id", "function_call"})


@dataclass(frozen=True, kw_only=True)
class RawConversation:
    """One line of a data file: where it stands, and its turns as a chat template takes them.

    `digest` is the sha256 of the turns: equal for two lines of any kinds that train the same.
    """

    file: str
    line: int
    turns: tuple[tuple[str, str], ...]
    digest: bytes

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": role, "content": content} for role, content in self.turns]

    @property
    def place(self) -> str:
        return f"{self.file}: line {self.line}"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A data file that was read whole: its kind, its sha256 and its conversations in the file's order."""

    path: str
    kind: str
    sha256: str
    bytes: int
    conversations: tuple[RawConversation, ...]


def read(path: Path) -> DataFile:
    """Every line of a data file. Raises InputError."""
    name, digest, size, kind = str(path), hashlib.sha256(), 0, ""
    conversations: list[RawConversation] = []
    with _opened(path) as file:
        for number, line in _lines(path, file):
            digest.update(line)
            size += len(line)
            if not line.strip():
                continue
            place = f"{name}: line {number}"
            document = _object(place, line)
            this_kind = _kind_of(place, document)
            if kind and this_kind != kind:
                raise InputError(
                    f"{place}: has the keys of {this_kind}, the lines before it those of {kind}; one kind a file"
                )
            kind = this_kind
            _, turns_of = KINDS[kind]
            turns = tuple(_turns(turns_of(place, document)))
            conversations.append(RawConversation(file=name, line=number, turns=turns, digest=_digest_of(place, turns)))
    if not conversations:
        raise InputError(f"{path}: empty; expected one JSON object a line with {_expected()}")
    return DataFile(
        path=str(path), kind=kind, sha256=digest.hexdigest(), bytes=size, conversations=tuple(conversations)
    )


def _digest_of(place: str, turns: tuple[tuple[str, str], ...]) -> bytes:
    try:
        # What json.dumps makes of the turns without spaces, in a third of its time.
        encoded = f"[{','.join(f'[{quoted(role)},{quoted(text)}]' for role, text in turns)}]".encode()
    except UnicodeEncodeError:
        raise InputError(f"{place}: holds half of a surrogate pair (\\ud800 to \\udfff): no text; remove it") from None
    return hashlib.sha256(encoded).digest()


def sha256_of(path: Path) -> str:
    """The sha256 of a data file, as `read` gives it, without a look at what its lines say. Raises InputError."""
    digest = hashlib.sha256()
    with _opened(path) as file:
        for _, line in _lines(path, file):
            digest.update(line)
    return digest.hexdigest()


def _opened(path: Path) -> BinaryIO:
    """A regular file, open for reading. O_NONBLOCK, because opening a FIFO without a writer would wait for ever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; check its path in the settings") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path}: not a regular file; name a file with one JSON object a line")
    return os.fdopen(descriptor, "rb")


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        while line := file.readline(MOST_LINE_BYTES + 1):
            number += 1
            if len(line) > MOST_LINE_BYTES:
                raise InputError(f"{path}: line {number}: longer than {MOST_LINE_BYTES >> 20} MiB; one example a line")
            yield number, line
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; check the disk, or copy the file anew") from None


def _object(place: str, line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{place}: not UTF-8 text") from None
    except (ValueError, RecursionError):
        if line.startswith(codecs.BOM_UTF8):
            raise InputError(f"{place}: begins with a byte order mark; save the file as UTF-8 without one") from None
        raise InputError(f"{place}: not JSON; expected one object, whole in its line") from None
    if not isinstance(document, dict):
        raise InputError(f"{place}: expected a JSON object with {_expected()}, found {schema.kind(document)}")
    return document


def _kind_of(place: str, document: Mapping[str, Any]) -> str:
    kinds = [kind for kind, (keys, _) in KINDS.items() if all(map(document.__contains__, keys))]
    if len(kinds) != 1:
        found = f"the keys of {' and '.join(kinds)}" if kinds else _keys(document)
        raise InputError(f"{place}: expected an object with {_expected()}, found {found}")
    return kinds[0]


def _keys(document: Mapping[str, Any]) -> str:
    names = [repr(key)[1:-1][:40] for key in document]
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"keys {shown}" if names else "no keys"


def _expected() -> str:
    return "; or ".join(" and ".join(keys) for keys, _ in KINDS.values())


# Each kind's turns, as (place of the turn, role, content) ----------------------------------------------------------

RawTurn = tuple[str, Any, Any]


def _from_messages(place: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    yield from _list_of_turns(f"{place}: messages", document["messages"], "role", "content")


def _from_sharegpt(place: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    if document.get("system"):
        yield f"{place}: system", "system", document["system"]
    yield from _list_of_turns(f"{place}: conversations", document["conversations"], "from", "value")


def _from_alpaca(place: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    if document.get("history"):
        raise InputError(f"{place}: history: not read in Alpaca lines; write the turns as messages")
    if document.get("system"):
        yield f"{place}: system", "system", document["system"]
    instruction, given = document["instruction"], document.get("input", "")
    for key, value in (("instruction", instruction), ("input", given)):
        if not isinstance(value, str):
            raise InputError(f"{place}: {key}: expected text, found {schema.kind(value)}")
    yield f"{place}: instruction", "user", f"{instruction}\n\n{given}" if given.strip() else instruction
    yield f"{place}: output", "assistant", document["output"]


def _from_completion(place: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    for key, role in (("prompt", "user"), ("completion", "assistant")):
        if isinstance(document[key], list):
            yield from _list_of_turns(f"{place}: {key}", document[key], "role", "content")
        else:
            yield f"{place}: {key}", role, document[key]


def _list_of_turns(place: str, turns: Any, role: str, content: str) -> Iterator[RawTurn]:
    if not isinstance(turns, list) or not turns:
        found = "an empty list" if turns == [] else schema.kind(turns)
        raise InputError(f"{place}: expected a list of turns, found {found}")
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise InputError(
                f"{place}[{index}]: expected an object with {role} and {content}, found {schema.kind(turn)}"
            )
        if tools := sorted(key for key in TOOL_KEYS.intersection(turn) if turn[key]):
            raise InputError(f"{place}[{index}]: {tools[0]}: tool turns are not trained on; remove the line")
        yield f"{place}[{index}]", turn.get(role), turn.get(content)


# The keys that a kind is recognised by, and what reads its lines.
KINDS: dict[str, tuple[tuple[str, ...], Callable[[str, Mapping[str, Any]], Iterator[RawTurn]]]] = {
    "messages": (("messages",), _from_messages),
    "ShareGPT": (("conversations",), _from_sharegpt),
    "Alpaca": (("instruction", "output"), _from_alpaca),
    "prompt and completion": (("prompt", "completion"), _from_completion),
}


def _turns(raw: Iterator[RawTurn]) -> Iterator[tuple[str, str]]:
    """The turns of one line, each of a known role, with text. A system turn comes first, or not at all."""
    for count, (here, named, content) in enumerate(raw):
        if not isinstance(named, str):
            raise InputError(f"{here}: role: expected text, found {schema.kind(named)}")
        if named in TOOL_ROLES:
            raise InputError(f"{here}: role {named}: tool turns are not trained on; remove the line")
        role = OTHER_NAMES.get(named, named)
        if role not in ROLES:
            raise InputError(f"{here}: role: expected one of {', '.join(ROLES)}, found {named[:40]!r}")
        if role == "system" and count:
            raise InputError(f"{here}: role system: only the first turn may be the system's; join the two texts")
        if not isinstance(content, str):
            raise InputError(f"{here}: content: expected text, found {schema.kind(content)}")
        yield role, content
