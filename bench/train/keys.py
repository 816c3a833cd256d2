"""Keys of a data line that decide what is trained on: honoured or refused by name; other unknown keys are counted.

A key that another tool reads must not be ignored: `weight: 0` trained on anyway, or `tools` left out of the prompt, is
another training than the file describes.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from bench.data.inputs import InputError
from bench.records import schema

TOOLS = "tools are not written into the prompt; remove the line"
MEDIA = "only text is trained on; remove the line"
THOUGHT = "not written by the template; write the thought into the content, as <think>...</think> before the answer"
PREFERENCE = "preferences are not trained on; write the good answer as a conversation of its own"
OPTION = "options of the template are not passed to it; remove the key or the line"
PARTIAL = "parts of an answer cannot be left out; remove the line, or set weight of the turn to 0"
SINGLE_WEIGHT = "lines are not weighted one by one; move them to a file of their own and set train.data_weights"
EMPTY = (None, "", "[]", "{}")


def _is_empty(value: object) -> bool:
    return value in EMPTY or value == [] or value == {}


def _is_null(value: object) -> bool:
    return value is None


def _is_no(value: object) -> bool:
    return value is None or value is False or _is_empty(value)


def _is_not_false(value: object) -> bool:
    return value is not False and not (isinstance(value, int) and value == 0)


def _is_one(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and value == 1)


# By key: whether a value changes nothing, and why any other is refused.
REFUSED: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("tools", "functions", "documents"), (_is_empty, TOOLS)),
    **dict.fromkeys(
        ("tool_calls", "tool_call_id", "function_call"), (_is_empty, "tool turns are not trained on; remove the line")
    ),
    **dict.fromkeys(("image", "images", "video", "videos", "audio", "audios"), (_is_empty, MEDIA)),
    **dict.fromkeys(("reasoning_content", "reasoning", "thinking"), (_is_no, THOUGHT)),
    **dict.fromkeys(("chosen", "rejected", "rejected_response"), (_is_empty, PREFERENCE)),
    **dict.fromkeys(
        ("chat_template", "chat_template_kwargs", "enable_thinking", "reasoning_effort"), (_is_null, OPTION)
    ),
    **dict.fromkeys(("train_detail", "loss_scale", "loss_mask"), (_is_empty, PARTIAL)),
    "history": (_is_empty, "earlier turns are not read from it; write all turns as messages"),
    "label": (_is_not_false, "an answer that is labelled as bad is not trained on; remove the line"),
}
LINE_REFUSED: dict[str, tuple[Callable[[object], bool], str]] = {
    **REFUSED,
    "weight": (_is_one, SINGLE_WEIGHT),
    **dict.fromkeys(("train", "loss"), (_is_not_false, "the line is not to be trained on; remove it")),
}
TURN_MARKS = ("weight", "train", "loss")  # honoured in a turn: whether it is trained on


def check_keys(
    location: str, document: Mapping[str, Any], known: Collection[str], *, is_turn: bool = False
) -> list[str]:
    """Return the keys that are not read and decide nothing. Raises InputError for a key that decides the training."""
    unread = []
    refused = REFUSED if is_turn else LINE_REFUSED
    for key in sorted(document.keys() - known):
        if key not in refused:
            unread.append(key)
            continue
        is_harmless, why = refused[key]
        if not is_harmless(document[key]):
            raise InputError(f"{location}: {key}: {why}")
    return unread


def is_trained(location: str, turn: Mapping[str, Any], *, is_answer: bool) -> bool:
    """Return whether a turn's `weight`, `train` and `loss` let it be trained on. Raises InputError for other values."""
    marks = []
    for key in TURN_MARKS:
        value = turn.get(key)
        if value is None:
            continue
        if key == "weight" and (not isinstance(value, int | float) or value not in (0, 1)):
            raise InputError(f"{location}: weight: expected 0 or 1, found {schema.type_name(value)}; correct the line")
        if key != "weight" and not isinstance(value, bool):
            raise InputError(f"{location}: {key}: expected true or false, found {schema.type_name(value)}; correct it")
        if key != "weight" and value and not is_answer:
            raise InputError(f"{location}: {key}: only the assistant's turns are trained on; remove the key")
        marks.append(bool(value))
    if len(set(marks)) > 1:
        raise InputError(f"{location}: {', '.join(TURN_MARKS)}: contradict each other; keep one of them")
    return all(marks)
