"""Reads a data file: one chat per line, as JSON. Every refusal names the file and the line. Standard library alone."""

import hashlib
import json
from pathlib import Path

from bench.data.inputs import ConversationStats, DataFacts, InputError
from bench.records.atomic_files import open_regular
from bench.records.schema import kind


def read_data(path: Path) -> tuple[DataFacts, list[ConversationStats]]:
    """Read a chat JSONL file: {"messages": [{"role": "user", "content": ...}, {"role": "assistant", ...}]} a line.

    Blank lines are ignored; a line without a user's or an assistant's text is counted as skipped. Raises InputError.
    """
    digest = hashlib.sha256()
    conversations: list[ConversationStats] = []
    skipped = 0
    try:
        with open_regular(path) as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if not line.strip():
                    continue
                messages = _messages(f"{path}: line {number}", line)
                if {"user", "assistant"} <= {m["role"] for m in messages if m["content"].strip()}:
                    conversations.append(ConversationStats(line=number, messages=messages))
                else:
                    skipped += 1
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; the data is one chat per line, as JSON") from None
    if not conversations and not skipped:
        raise InputError(f"{path}: empty; expected one chat per line, as JSON")
    if not conversations:
        raise InputError(
            f"{path}: no chat of {skipped} has a user's and an assistant's text; there is nothing to train on"
        )
    facts = DataFacts(path=str(path), sha256=digest.hexdigest(), samples=len(conversations), skipped=skipped)
    return facts, conversations


def _messages(place: str, line: bytes) -> list[dict[str, str]]:
    try:
        document = json.loads(line)
    except UnicodeDecodeError:
        raise InputError(f"{place}: not UTF-8 text") from None
    except (ValueError, RecursionError):  # also a number of thousands of digits
        raise InputError(f"{place}: not JSON") from None
    messages = document.get("messages") if isinstance(document, dict) else None
    if not isinstance(messages, list) or not messages:
        found = _found(document) if messages is None else f"messages: {_found(messages)}"
        raise InputError(
            f'{place}: not a chat; expected {{"messages": [{{"role": ..., "content": ...}}]}}, found {found}; '
            "convert the file to one chat per line"
        )
    kept = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise InputError(f"{place}: messages[{index}]: expected role and content, found {_found(message)}")
        for key in ("role", "content"):
            if not isinstance(message[key], str):
                raise InputError(f"{place}: messages[{index}].{key}: expected text, found {kind(message[key])}")
        kept.append({"role": message["role"], "content": message["content"]})
    return kept


def _found(value: object) -> str:
    """What stands where a chat or a message was expected: an object's keys, or the kind of value."""
    if isinstance(value, dict) and value:
        return f"keys {', '.join(list(value)[:6])}" + (", ..." if len(value) > 6 else "")
    return f"an empty {'object' if isinstance(value, dict) else 'list'}" if value in ({}, []) else kind(value)
