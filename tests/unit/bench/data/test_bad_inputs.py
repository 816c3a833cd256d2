"""Any content of a data file, a file of trials or a model folder is usable, or is rejected in one line.

`tests/unit/tasks/settings/test_settings_property.py` tests the settings likewise. EXAMPLES=10000 draws more examples.
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bench.data.inputs import InputError
from bench.data.readers import read_data
from bench.data.trial_inputs import check_trials
from bench.records import Trial, TrialError
from tests.support.paths import ROOT
from tests.support.small_inputs import CONFIG, TOKENIZER
from tests.support.thorough import examples
from tests.unit.bench.data.conftest import build

pytestmark = pytest.mark.slow

# One folder for all examples of a test.
careful = hypothesis_settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": [1, {"y": "z"}]}}}
TOOL_CHAT: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "r", "tool_call_id": "c1"},
        {"role": "assistant", "content": "A."},
    ],
}
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([0, -1, 2**31, 2**64, 10**9, 10**30, 1e308]))
TEXTS = st.one_of(st.text(max_size=8), st.sampled_from(["", "\0", "\ud800", "../x", "/etc/passwd", "a\nb", "\x1b[31m"]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
# Bytes that no JSON library writes, but a file may contain.
RAW = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"[" * 100_000, b"9" * 5000, b'{"a": ' * 5000, b"\xef\xbb\xbf{}", b"\xff\xfe", b"NaN", b"-Infinity", b"{}{}"]
    ),
)


@contextlib.contextmanager
def rejected_in_one_line() -> Iterator[None]:
    """Allow only InputError and TrialError inside, and check that the message is one line."""
    message = "one line"
    try:
        yield
    except (InputError, TrialError) as error:
        message = str(error)
    assert len(message.splitlines()) == 1, message


@st.composite
def changed(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    """Draw a good document with some keys, at any depth, changed or removed; or bytes that are not a document."""
    if draw(st.integers(0, 5)) == 0:
        return draw(RAW)
    document = json.loads(json.dumps(good))
    for _ in range(draw(st.integers(1, 3))):
        node: Any = document
        while True:
            keys = sorted(node) if isinstance(node, dict) else list(range(len(node)))
            key = draw(st.sampled_from(keys)) if keys else "new"
            if keys and isinstance(node[key], (dict, list)) and draw(st.booleans()):
                node = node[key]
                continue
            break
        if isinstance(node, list):
            node.append(draw(VALUES)) if key == "new" else node.__setitem__(key, draw(VALUES))
        elif draw(st.integers(0, 3)) == 0:
            node.pop(key, None)
        else:
            node[key] = draw(VALUES)
    return json.dumps(document).encode()


@careful
@given(lines=st.lists(changed(TOOL_CHAT), min_size=1, max_size=3))
def test_any_lines_of_data(lines: list[bytes], tmp_path: Path, tokenizer_of: Callable[..., Any]) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\n".join([json.dumps(TOOL_CHAT).encode(), *lines]))
    template = (ROOT / "docs/chatml-tools.jinja").read_text(encoding="utf-8")
    with rejected_in_one_line():
        facts, conversations = read_data(path)
        assert facts.samples == len(conversations)
        assert build(tokenizer_of(template), *conversations)[0]


@careful
@given(data=st.data())
def test_any_model_folder(
    data: st.DataObject, model_folder: Path, data_file: Path, tmp_path: Path, make_trial: Callable[..., Trial]
) -> None:
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model_folder, folder)
    weights = folder / "model.safetensors"
    size = int.from_bytes(weights.read_bytes()[:8], "little")
    header = json.loads(weights.read_bytes()[8 : 8 + size])
    good = {"config": CONFIG, "tokenizer": TOKENIZER, "tokenizer_config": {"chat_template": "{{ messages }}"}}
    damaged = data.draw(st.sampled_from([*good, "header", "index", "sums"]))
    if damaged in good:
        (folder / f"{damaged}.json").write_bytes(data.draw(changed(good[damaged])))
    elif damaged == "header":
        written = data.draw(changed(header))
        weights.write_bytes(len(written).to_bytes(8, "little") + written + weights.read_bytes()[8 + size :])
    elif damaged == "index":
        weights.rename(folder / "model-1.safetensors")
        weight_map = dict.fromkeys(set(header) - {"__metadata__"}, "model-1.safetensors")
        (folder / "model.safetensors.index.json").write_bytes(data.draw(changed({"weight_map": weight_map})))
    else:
        (folder / "SHA256SUMS").write_bytes(data.draw(RAW))
    with rejected_in_one_line():
        check_trials([make_trial(model=str(folder), data=str(data_file))])
