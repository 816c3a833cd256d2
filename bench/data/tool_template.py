"""Tool turns in the shape that a chat template writes, found by rendering a probe.

Templates differ in what they take. Most want the arguments of a call as an object, DeepSeek's as JSON text. Mistral's
rejects an id that does not have nine characters. Some write no tools, no calls or no results. None of this is decided
by a template's name: a short conversation with a call is rendered in each shape, and the first one counts whose text
contains the call and its result.
"""

import functools
import hashlib
import itertools
import json
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.data.inputs import Conversation, InputError
from bench.data.tokenizer import ChatTemplate, Messages
from bench.data.tool_calls import Tool

FUNCTION, KEY, VALUE = "probe_function", "probe_key", "probe_value"
DESCRIPTION, RESULT, TEXT, QUESTION = "probe_description", "probe_result", "probe_text", "probe_question"
LONG_ID, SHORT_ID = "call_probe_0123456789", "probe0123"
SHORT_ID_PATTERN = re.compile(r"[A-Za-z0-9]{9}")
ID_CHARACTERS = string.digits + string.ascii_letters
PROBE_TOOLS: tuple[Tool, ...] = (
    {
        "type": "function",
        "function": {
            "name": FUNCTION,
            "description": DESCRIPTION,
            "parameters": {
                "type": "object",
                "properties": {KEY: {"type": "string", "description": DESCRIPTION}},
                "required": [KEY],
            },
        },
    },
)
# A call in Python's form, or JSON text within a JSON string, is not what a model was trained on.
OTHER_FORMS = (f"'{KEY}'", f"'name': '{FUNCTION}'", f'\\"{KEY}')
REMEDY = "use a model whose template writes them, set train.chat_template, or remove the line"


class Shape(NamedTuple):
    """Shape of calls: arguments as JSON text, content of a turn without text, ids, and whether a text is written too.

    Without `writes_text` the template leaves the text of such a turn out, or its calls, so the text is left out.
    Without `writes_several` it writes only the first of a turn's calls.
    """

    has_text_arguments: bool
    empty_content: str | None
    has_short_ids: bool
    needs_ids: bool = True
    writes_text: bool = True
    writes_several: bool = True


class ToolTemplate:
    """The tool turns of conversations in the shape of one chat template."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._find_shape = functools.cache(self._probe)

    def messages(self, conversation: Conversation) -> tuple[list[dict[str, Any]], bool]:
        """Return the conversation's messages in the template's shape, and whether it leaves a call turn's text out.

        Raises InputError, with the line, if the template does not write its tools or tool turns.
        """
        if conversation.tools and not self._writes_tools:
            raise InputError(
                f"{conversation.location}: tools: the model's chat template does not write them", remedy=REMEDY
            )
        messages = conversation.messages
        calling = [message for message in messages if "tool_calls" in message]
        if not calling:
            return messages, False
        shape, most_calls = self._shape(conversation), max(len(message["tool_calls"]) for message in calling)
        if most_calls > 1 and not shape.writes_several:
            raise InputError(
                f"{conversation.location}: tool_calls: the model's chat template writes only the first of a turn's "
                f"{most_calls} calls",
                remedy="write each call as a turn of its own, followed by its result",
            )
        is_text_lost = not shape.writes_text and any(message["content"].strip() for message in calling)
        return _in_shape(messages, shape), is_text_lost

    @functools.cached_property
    def _writes_tools(self) -> bool:
        turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": TEXT}]
        return any(
            DESCRIPTION in self._render(messages, PROBE_TOOLS, prompt=prompt)
            for messages, prompt in ((turns, False), (turns[:1], True))
        )

    def _shape(self, conversation: Conversation) -> Shape:
        has_tools = bool(conversation.tools)
        shape = self._find_shape(has_tools)
        if isinstance(shape, Shape):
            return shape
        if not has_tools and isinstance(self._find_shape(True), Shape):
            raise InputError(
                f"{conversation.location}: tools: missing, and the model's chat template writes tool calls only with "
                "them",
                remedy="add the tools to the line",
            )
        raise InputError(f"{conversation.location}: {shape}", remedy=REMEDY)

    def _probe(self, has_tools: bool) -> Shape | str:
        """Return the shape with or without tools, or why no shape fits."""
        tools = PROBE_TOOLS if has_tools else ()
        reason = "tool_calls: the model's chat template does not write them"
        for has_text_arguments, content, has_short_ids in itertools.product((False, True), ("", None), (False, True)):
            shape = Shape(has_text_arguments, content, has_short_ids)
            identifier = SHORT_ID if has_short_ids else LONG_ID
            text = self._render(_probe_turns(shape, identifier), tools)
            if FUNCTION not in text or VALUE not in text or any(form in text for form in OTHER_FORMS):
                continue
            if RESULT not in text:
                reason = "role tool: the model's chat template does not write results of tools"
                continue
            with_text = self._render(_probe_turns(shape._replace(empty_content=TEXT), identifier), tools)
            several = self._render(_probe_turns(shape, identifier, identifier[::-1]), tools)
            return shape._replace(
                needs_ids=not self._render(_probe_turns(shape, None), tools),
                writes_text=all(part in with_text for part in (TEXT, FUNCTION, VALUE)),
                writes_several=not several or several.count(VALUE) > text.count(VALUE),  # or it says itself why not
            )
        return reason

    def _render(self, messages: Messages, tools: Sequence[Tool], *, prompt: bool = False) -> str:
        """Render a probe; an empty text if the template rejects it."""
        try:
            return self._template.render("", messages, prompt=prompt, tools=tools)
        except InputError:  # a probe is not in the data: the template may reject it
            return ""


def _probe_turns(shape: Shape, *identifiers: str | None) -> list[dict[str, Any]]:
    """Build a question, a turn with a call for each id in this shape, their results and an answer."""
    call = {"type": "function", "function": {"name": FUNCTION, "arguments": {KEY: VALUE}}}
    result = {"role": "tool", "content": RESULT, "name": FUNCTION}
    calls = [call if each is None else {**call, "id": each} for each in identifiers]
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": shape.empty_content or "", "tool_calls": calls},
        *(result if each is None else {**result, "tool_call_id": each} for each in identifiers),
        {"role": "assistant", "content": "A."},
    ]
    return _in_shape(turns, shape._replace(needs_ids=False))


def _in_shape(messages: Sequence[dict[str, Any]], shape: Shape) -> list[dict[str, Any]]:
    """Return messages with their calls and results in this shape."""
    shaped, identifiers, waiting = list[dict[str, Any]](), dict[str, str](), list[str]()
    for turn, message in enumerate(messages):
        if "tool_calls" in message:
            calls = [_call(call, f"{turn} {index}", shape) for index, call in enumerate(message["tool_calls"])]
            waiting = [call["id"] for call in calls if "id" in call]
            in_line = (call.get("id", "") for call in message["tool_calls"])
            identifiers.update(zip(in_line, waiting, strict=False))
            content = message["content"] if message["content"].strip() and shape.writes_text else shape.empty_content
            message = {**message, "content": content, "tool_calls": calls}
        elif "tool_call_id" in message:
            message = {**message, "tool_call_id": identifiers[message["tool_call_id"]]}
        elif message["role"] == "tool" and shape.needs_ids:
            message = {**message, "tool_call_id": waiting.pop(0)}
        shaped.append(message)
    return shaped


def _call(call: Mapping[str, Any], position: str, shape: Shape) -> dict[str, Any]:
    """Return a call in this shape; an id that the line does not give follows from the call's position."""
    function, identifier = call["function"], call.get("id")
    if identifier is None and shape.needs_ids:
        identifier = _derived_id(f"{position} {function['name']}")
    elif identifier is not None and shape.has_short_ids and not SHORT_ID_PATTERN.fullmatch(identifier):
        identifier = _derived_id(identifier)
    if shape.has_text_arguments:
        function = {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
    shaped = {"type": "function", "function": function}
    return shaped if identifier is None else {**shaped, "id": identifier}


def _derived_id(seed: str) -> str:
    """Return nine letters and digits that follow from the seed."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big")
    return "".join(ID_CHARACTERS[number // 62**digit % 62] for digit in range(9))
