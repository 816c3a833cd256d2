"""Reader of a data file: one JSON chat per line. Every error names the file and the line. Only the standard library."""

import hashlib
import json
from pathlib import Path

from bench.data.inputs import ConversationStats, DataFacts, InputError
from bench.records.atomic_files import open_regular
from bench.records.schema import type_name


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
                messages = _parse_messages(f"{path}: line {number}", line)
                if {"user", "assistant"} <= {m["role"] for m in messages if m["content"].strip()}:
                    conversations.append(ConversationStats(line=number, messages=messages))
                else:
                    skipped += 1
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}; name a file with one JSON chat per line"
        ) from error
    if not conversations and not skipped:
        raise InputError(f"{path}: empty; name a file with one JSON chat per line")
    if not conversations:
        raise InputError(
            f"{path}: none of {skipped} chats has a user's and an assistant's text; name a file with usable chats"
        )
    facts = DataFacts(path=str(path), sha256=digest.hexdigest(), samples=len(conversations), skipped=skipped)
    return facts, conversations


def _parse_messages(location: str, line: bytes) -> list[dict[str, str]]:
    try:
        document = json.loads(line)
    except UnicodeDecodeError as error:
        raise InputError(f"{location}: not UTF-8 text") from error
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise InputError(f"{location}: not JSON") from error
    messages = document.get("messages") if isinstance(document, dict) else None
    if not isinstance(messages, list) or not messages:
        actual = _describe(document) if messages is None else f"messages: {_describe(messages)}"
        raise InputError(
            f'{location}: expected a chat {{"messages": [{{"role": ..., "content": ...}}]}}, found {actual}; '
            "convert the file to one chat per line"
        )
    kept = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise InputError(f"{location}: messages[{index}]: expected role and content, found {_describe(message)}")
        for key in ("role", "content"):
            if not isinstance(message[key], str):
                raise InputError(f"{location}: messages[{index}].{key}: expected text, found {type_name(message[key])}")
        kept.append({"role": message["role"], "content": message["content"]})
    return kept


def _describe(value: object) -> str:
    """Describe a value that is not a chat or a message: an object's keys, or the kind of value."""
    if isinstance(value, dict) and value:
        return f"keys {', '.join(list(value)[:6])}" + (", ..." if len(value) > 6 else "")
    return f"an empty {'object' if isinstance(value, dict) else 'list'}" if value in ({}, []) else type_name(value)
