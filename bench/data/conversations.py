"""A data line's object to its conversation: turns, tools and calls, and what is trained on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring as quoted
from typing import Any

from bench.data.formats import (
    ROLE_KEYS,
    THOUGHT_NAMES,
    TURN_MARKS,
    Format,
    RawTurn,
    check_keys,
    check_turn,
    is_trained,
    read_thought,
)
from bench.data.inputs import Conversation, InputError
from bench.data.tool_calls import CallTracker, read_calls, read_tools

MAX_TURNS = 4096  # in a row: each answer is rendered with all turns before it


def parse_conversation(document: Mapping[str, Any], data_format: Format, *, file: str, line: str) -> Conversation:
    """Return the conversation of a line of this format. Raises InputError, which names line and key."""
    location = f"{file}: {line}"
    unread_of_line = check_keys(location, document, data_format.known)
    is_text = data_format.is_text
    tools = () if is_text else read_tools(location, document.get("tools"))
    raw_turns = [*data_format.turns(location, document)]
    if document.get("system") not in (None, "") and not is_text:
        raw_turns.insert(0, RawTurn(f"{location}: system", "system", "system", document["system"]))
    if len(raw_turns) > MAX_TURNS:
        raise InputError(
            f"{location}: {len(raw_turns):,} turns, more than {MAX_TURNS:,}", remedy="divide the conversation"
        )
    turns, untrained, unread = list[tuple[str, str]](), list[int](), set[str]()
    additions, tracker = dict[int, dict[str, Any]](), CallTracker()
    for index, raw in enumerate(raw_turns):
        role, content = check_turn(raw, index)
        turns.append((role, content))
        document = raw.document
        if document:
            known = ROLE_KEYS.get(role, set()).union(TURN_MARKS)
            unread.update(f"{raw.key}[].{key}" for key in check_keys(raw.location, document, known, is_turn=True))
            if not is_trained(raw.location, document, is_answer=role == "assistant"):
                untrained.append(index)
        if role == "tool":
            additions[index] = tracker.add_result(raw.location, document)
            continue
        tracker.check_answered(raw.location)
        if role == "assistant" and (calls := read_calls(raw.location, document.get("tool_calls"), tools)):
            tracker.add_calls(raw.location, calls)
            additions[index] = {"tool_calls": calls}
        if role == "assistant" and (thought := read_thought(raw.location, document)) is not None:
            additions.setdefault(index, {}).update(dict.fromkeys(THOUGHT_NAMES, thought))
    return Conversation(
        file=file,
        line=line,
        is_text=is_text,
        turns=tuple(turns),
        digest=_digest(location, turns, [tools, additions] if tools or additions else None),
        prompt_turns=sum(raw.key == "prompt" for raw in raw_turns),
        untrained=tuple(untrained),
        unread_keys=(*unread_of_line, *sorted(unread)),
        tools=tools,
        additions=additions,
    )


def _digest(location: str, turns: Sequence[tuple[str, str]], tool_parts: object) -> bytes:
    try:
        # The output of json.dumps without spaces, in a third of its time.
        encoded = f"[{','.join(f'[{quoted(role)},{quoted(text)}]' for role, text in turns)}]".encode()
        if tool_parts is not None:
            encoded += json.dumps(tool_parts, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{location}: contains a lone surrogate (\\ud800 to \\udfff)", remedy="remove it") from error
    return hashlib.sha256(encoded).digest()
