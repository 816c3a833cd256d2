"""Formats of a data line: the keys that identify each, and its turns. Only the standard library.

    messages              [{"role": "user", "content": ...}, {"role": "assistant", ...}, ...]
    conversations         ShareGPT: [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}, ...]
    instruction, output   Alpaca, with an optional "input"
    prompt, completion    text, or lists of messages; answers in the prompt are not trained on
    question, answer      a pair of PAIRS, with an optional context: only read of lines without the keys above
    text                  plain text without turns, for trainings on every token; not read next to the keys above

A "system" text next to them is the first turn, "tools" are those of `bench.data.tool_calls`. A list of turns has
objects with a role and a content, texts of user and assistant by turns, or pairs such as {"input": ..., "output": ...};
content is text or a list of text parts. A new format is one `Format` in FORMATS.

A key that decides what is trained on is honoured or refused by name, because `weight: 0` trained on anyway, or `tools`
left out of the prompt, is another training than the file describes. Other unknown keys are counted.
"""

import json
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from bench.data.inputs import InputError
from bench.records import schema

ROLES = ("system", "developer", "user", "assistant", "tool")
# Other tools' names for the roles.
ROLE_ALIASES = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt", "ai"), "assistant"),
    **dict.fromkeys(("function", "observation", "ipython"), "tool"),
}
CALL_ROLE = "function_call"  # a turn of the assistant whose text is its call
ROLE_NAMES, CONTENT_NAMES = ("role", "from", "speaker"), ("content", "value", "text")  # a turn has one of each
PAIR_NAMES = {"input": "user", "human": "user", "user": "user", "output": "assistant", "assistant": "assistant"}
TURN_MARKS = ("weight", "train", "loss")  # honoured in a turn: whether it is trained on
THOUGHT_NAMES = ("reasoning_content", "reasoning", "thinking")  # templates read one or another
# Read in turns of these roles, with TURN_MARKS.
ROLE_KEYS = {"assistant": {"tool_calls", *THOUGHT_NAMES}, "tool": {"tool_call_id", "name"}}
PART_TYPES = ("text", "input_text", "output_text")


class RawTurn(NamedTuple):
    """Unchecked turn: where it is, the key of the line it comes from, and the other keys of its object."""

    location: str
    key: str
    role: Any
    content: Any
    document: Mapping[str, Any] = MappingProxyType({})


def _from_pair(
    location: str, document: Mapping[str, Any], *, question: str, context: str, answer: str
) -> Iterator[RawTurn]:
    texts = {question: document[question], context: document.get(context)}
    texts[context] = "" if texts[context] is None else texts[context]
    for key, value in texts.items():
        if not isinstance(value, str):
            raise InputError(f"{location}: {key}: expected text, found {schema.type_name(value)}")
    yield RawTurn(f"{location}: {question}", question, "user", "\n\n".join(filter(str.strip, texts.values())))
    yield RawTurn(f"{location}: {answer}", answer, "assistant", document[answer])


def _from_completion(location: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    for key, role in (("prompt", "user"), ("completion", "assistant")):
        if isinstance(document[key], list):
            yield from _from_turn_list(location, key, document[key])
        else:
            yield RawTurn(f"{location}: {key}", key, role, document[key])


def _from_text(location: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    yield RawTurn(f"{location}: text", "text", "assistant", document["text"])


def _from_key(key: str, location: str, document: Mapping[str, Any]) -> Iterator[RawTurn]:
    return _from_turn_list(location, key, document[key])


def _from_turn_list(location: str, key: str, turns: Any) -> Iterator[RawTurn]:
    if not isinstance(turns, list) or not turns:
        actual = "an empty list" if turns == [] else schema.type_name(turns)
        raise InputError(f"{location}: {key}: expected a list of turns, found {actual}")
    for index, turn in enumerate(turns):
        turn_location = f"{location}: {key}[{index}]"
        if isinstance(turn, str) and all(isinstance(each, str) for each in turns):  # they alternate
            yield RawTurn(turn_location, key, ("user", "assistant")[index % 2], turn)
        elif not isinstance(turn, dict):
            raise InputError(
                f"{turn_location}: expected an object with role and content, found {schema.type_name(turn)}"
            )
        elif turn and turn.keys() <= PAIR_NAMES.keys():
            speakers = sorted(turn, key=lambda name: PAIR_NAMES[name] == "assistant")
            yield from (RawTurn(f"{turn_location}: {name}", key, PAIR_NAMES[name], turn[name]) for name in speakers)
        else:
            yield _from_turn(turn_location, key, turn)


def _from_turn(location: str, key: str, turn: Mapping[str, Any]) -> RawTurn:
    role, content = (next(filter(turn.__contains__, names), names[0]) for names in (ROLE_NAMES, CONTENT_NAMES))
    others = {name: value for name, value in turn.items() if name not in (role, content)}
    if not others.keys().isdisjoint((*ROLE_NAMES[:2], *CONTENT_NAMES[:2])):
        raise InputError(f"{location}: has keys of role, content and of from, value", remedy="keep one pair")
    if turn.get(role) == CALL_ROLE and isinstance(calls := turn.get(content), str):
        calls = calls if calls.lstrip().startswith("[") else f"[{calls}]"
        return RawTurn(location, key, "assistant", None, {**others, "tool_calls": calls})
    return RawTurn(location, key, turn.get(role), turn.get(content), others)


@dataclass(frozen=True)
class Format:
    """Format of a line: its name, the keys that identify it, the function that yields its turns, and optional keys.

    A line has the format of the lowest `rank` whose keys it has. With `is_text` it has one text in place of turns.
    """

    name: str
    keys: tuple[str, ...]
    turns: Callable[[str, Mapping[str, Any]], Iterator[RawTurn]]
    optional: tuple[str, ...] = ("system", "tools")
    rank: int = 0
    is_text: bool = False

    @property
    def known(self) -> tuple[str, ...]:
        return (*self.keys, *self.optional)


def _pair(name: str, question: str, context: str, answer: str, rank: int = 1) -> Format:
    turns = partial(_from_pair, question=question, context=context, answer=answer)
    return Format(name, (question, answer), turns, (context, "system", "tools"), rank)


# The columns of a question and of its answer in published data sets.
PAIRS = {
    **dict.fromkeys(("question", "input", "prompt", "query"), ("answer", "response", "output")),
    "instruction": ("response", "answer"),
    "problem": ("solution",),
    "user": ("assistant",),
}
FORMATS: tuple[Format, ...] = (
    Format("messages", ("messages",), partial(_from_key, "messages")),
    Format("ShareGPT", ("conversations",), partial(_from_key, "conversations")),
    _pair("Alpaca", "instruction", "input", "output", rank=0),
    Format("prompt and completion", ("prompt", "completion"), _from_completion),
    *(
        _pair(f"{question} and {answer}", question, "context", answer)
        for question, answers in PAIRS.items()
        for answer in answers
    ),
    Format("text", ("text",), _from_text, optional=(), rank=2, is_text=True),
)


def detect_format(location: str, document: Mapping[str, Any]) -> Format:
    """Return the one format of the lowest rank whose keys are all there. Raises InputError for none or several."""
    matches = [data_format for data_format in FORMATS if all(map(document.__contains__, data_format.keys))]
    rank = min((data_format.rank for data_format in matches), default=0)
    matches = [data_format for data_format in matches if data_format.rank == rank]
    if len(matches) == 1:
        return matches[0]
    if matches:
        actual = f"the keys of {' and '.join(data_format.name for data_format in matches)}"
        first, *others = matches
        dropped = dict.fromkeys(key for other in others for key in other.keys if key not in first.keys)
        remedy = f"choose one: {_command(location, dropped)} reads {first.name}"
    else:
        names = [shorten(key) for key in document]
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        actual = f"keys {shown}" if names else "no keys"
        remedy = f"correct the keys, or say which is which: {_command(location, _example(document))}"
    kinds = ", or ".join(" and ".join(each.keys) for each in FORMATS if each.rank != 1)
    expected = f"an object with {kinds}, or a pair such as question and answer"
    raise InputError(f"{location}: expected {expected}, found {actual}", remedy=remedy)


def _example(document: Mapping[str, Any]) -> dict[str, str]:
    """Return names for the first columns with text: two as question and answer, one as plain text."""
    names = [name for name, value in document.items() if value is None or isinstance(value, str)] or list(document)
    return dict(zip(("prompt", "completion") if len(names) > 1 else ("text",), names, strict=False))


def _command(location: str, columns: Mapping[str, str | None]) -> str:
    file, text = location.rpartition(": ")[0], json.dumps(columns, ensure_ascii=False)
    return f"`inv data.check {shlex.quote(file)} --columns={shlex.quote(text)}`"


def shorten(key: str) -> str:
    """Return a key of the data for a message, without control characters and cut after 40 characters."""
    return repr(key)[1:-1][:40]


def check_turn(turn: RawTurn, index: int) -> tuple[str, str]:
    """Return the role and text of a turn: a known role, text or parts of text, and a system turn only as the first.

    The assistant's turn with tool calls may have no text.
    """
    location, role_name = turn.location, turn.role
    if not isinstance(role_name, str):
        raise InputError(f"{location}: role: expected text, found {schema.type_name(role_name)}")
    role = ROLE_ALIASES.get(role_name.lower(), role_name.lower())
    if role not in ROLES:
        raise InputError(f"{location}: role: expected one of {', '.join(ROLES)}, found {role_name[:40]!r}")
    if role == "system" and index:
        raise InputError(
            f"{location}: role system: only the first turn may be the system's", remedy="join the two texts"
        )
    has_calls = role == "assistant" and turn.document.get("tool_calls") not in EMPTY
    return role, "" if turn.content is None and has_calls else _join_parts(location, turn.content)


def _join_parts(location: str, content: object) -> str:
    """Return a text, or the parts of a list of texts, one directly after another as templates write them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InputError(f"{location}: content: expected text or a list of parts, found {schema.type_name(content)}")
    texts = []
    for index, part in enumerate(content):
        part_location = f"{location}: content[{index}]"
        document = {"text": part} if isinstance(part, str) else part if isinstance(part, dict) else {}
        kind, text = document.get("type", "text"), document.get("text")
        if isinstance(kind, str) and kind not in PART_TYPES:
            raise InputError(f"{part_location}: type {shorten(kind)}: {MEDIA}")
        if not isinstance(kind, str) or not isinstance(text, str):
            actual = schema.type_name(text if "text" in document else part)
            raise InputError(f'{part_location}: expected {{"type": "text", "text": ...}}, found {actual}')
        texts.append(text)
    return "".join(texts)


# Keys that decide what is trained on ----------------------------------------------------------------------------------

DOCUMENTS = "documents are not written into the prompt; write them into a turn, or remove the line"
OLD_TOOLS = "the older form of tools and tool_calls; write these"
MEDIA = "only text is trained on; remove the line"
THOUGHT = "only turns of the assistant have thoughts; move them there"
PREFERENCE = "preferences are not trained on; write the good answer as a conversation of its own"
OPTION = "options of the template are not passed to it; remove the key or the line"
PARTIAL = "parts of an answer cannot be left out; remove the line, or set weight of the turn to 0"
SINGLE_WEIGHT = "lines are not weighted; repeat the line, or remove it"
EMPTY: tuple[object, ...] = (None, "", "[]", "{}", [], {})
NO: tuple[object, ...] = (*EMPTY, False)
Refused = dict[str, tuple[tuple[object, ...], str]]

# By key: the values that change nothing, and why any other is refused.
REFUSED: Refused = {
    "documents": (EMPTY, DOCUMENTS),
    **dict.fromkeys(("functions", "function_call"), (EMPTY, OLD_TOOLS)),
    "tools": (EMPTY, "belong to the line; move them next to its turns"),
    "tool_calls": (EMPTY, "only turns of the assistant have them; move them there"),
    "tool_call_id": (EMPTY, "only turns of role tool have it; correct the role, or remove it"),
    **dict.fromkeys(("image", "images", "video", "videos", "audio", "audios"), (EMPTY, MEDIA)),
    **dict.fromkeys(THOUGHT_NAMES, (NO, THOUGHT)),
    **dict.fromkeys(("chosen", "rejected", "rejected_response"), (EMPTY, PREFERENCE)),
    **dict.fromkeys(
        ("chat_template", "chat_template_kwargs", "enable_thinking", "reasoning_effort"), ((None,), OPTION)
    ),
    **dict.fromkeys(("train_detail", "loss_scale", "loss_mask"), (EMPTY, PARTIAL)),
    "history": (EMPTY, "earlier turns are not read from it; write all turns as messages"),
}
LINE_REFUSED: Refused = {
    **REFUSED,
    "weight": ((None, 1), SINGLE_WEIGHT),
}
# Refused if it is false: why.
LABEL = {"label": "an answer that is labelled as bad is not trained on; remove the line"}
LINE_MARKS = {**LABEL, **dict.fromkeys(("train", "loss"), "the line is not to be trained on; remove it")}
DECIDING_KEYS = LINE_REFUSED.keys() | LINE_MARKS


def check_keys(
    location: str, document: Mapping[str, Any], known: Collection[str], *, is_turn: bool = False
) -> list[str]:
    """Return the keys that are not read and decide nothing. Raises InputError for a key that decides the training."""
    unread = []
    refused, marks = (REFUSED, LABEL) if is_turn else (LINE_REFUSED, LINE_MARKS)
    for key in sorted(document.keys() - known):
        if key in refused:
            harmless, why = refused[key]
            is_refused = document[key] not in harmless
        elif key in marks:
            why, is_refused = marks[key], document[key] in (False, 0)
        else:
            unread.append(key)
            continue
        if is_refused:
            raise InputError(f"{location}: {key}: {why}")
    return unread


def read_thought(location: str, turn: Mapping[str, Any]) -> str | None:
    """Return the thought of an assistant's turn; None without one. Raises InputError."""
    thoughts = {name: turn[name] for name in THOUGHT_NAMES if turn.get(name) not in NO}
    for name, thought in thoughts.items():
        if not isinstance(thought, str):
            raise InputError(f"{location}: {name}: expected text, found {schema.type_name(thought)}")
    if len(set(thoughts.values())) > 1:
        raise InputError(f"{location}: {', '.join(thoughts)}: contradict each other", remedy="keep one of them")
    return next(iter(thoughts.values()), None)


def is_trained(location: str, turn: Mapping[str, Any], *, is_answer: bool) -> bool:
    """Return whether a turn's `weight`, `train` and `loss` let it be trained on. Raises InputError for other values."""
    marks = []
    for key in TURN_MARKS:
        value = turn.get(key)
        if value is None:
            continue
        if key == "weight" and (not isinstance(value, int | float) or value not in (0, 1)):
            raise InputError(
                f"{location}: weight: expected 0 or 1, found {schema.type_name(value)}", remedy="correct the line"
            )
        if key != "weight" and not isinstance(value, bool):
            raise InputError(
                f"{location}: {key}: expected true or false, found {schema.type_name(value)}", remedy="correct it"
            )
        if key != "weight" and value and not is_answer:
            raise InputError(f"{location}: {key}: only the assistant's turns are trained on", remedy="remove the key")
        marks.append(bool(value))
    if len(set(marks)) > 1:
        raise InputError(f"{location}: {', '.join(TURN_MARKS)}: contradict each other", remedy="keep one of them")
    return all(marks)
