"""Tests of docs/troubleshooting.md: it matches the checks, and has every promised problem."""

import importlib.util
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.data.inputs import InputError
from bench.data.model_folder import check_model
from bench.data.readers import read_data
from bench.machine import preflight
from bench.records import suite
from tasks.doctor.doctor import DOCUMENT_PATH, MESSAGES, all_checks, document_rows, render
from tasks.faults import from_error
from tests.support.paths import ROOT
from tests.unit.tasks.doctor import fault_examples

RECORDED: dict[str, list[list[str]]] = json.loads(MESSAGES.read_text(encoding="utf-8"))


def test_the_document_is_up_to_date() -> None:
    document = (ROOT / DOCUMENT_PATH).read_text(encoding="utf-8")
    assert document == render(all_checks()), "run `inv doctor --document`, and review the difference"


def assert_recorded(messages: dict[str, list[list[str]]]) -> None:
    """Compare messages with those of messages.json; UPDATE_GOLDEN=1 writes them there."""
    if os.environ.get("UPDATE_GOLDEN"):
        RECORDED.update(messages)
        MESSAGES.write_text(json.dumps(RECORDED, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    assert {title: RECORDED.get(title) for title in messages} == messages


def test_the_messages_of_other_modules_are_recorded() -> None:
    assert_recorded(fault_examples.messages())
    assert RECORDED.keys() <= {check.title for check in all_checks()}


def test_every_check_asks_a_question_and_has_a_title_of_its_own() -> None:
    assert [check.title for check in all_checks() if "?" not in check.question] == []
    assert len({check.title for check in all_checks()}) == len(all_checks())


def test_every_fault_has_a_remedy() -> None:
    rows = [row for check in all_checks() for row in document_rows(check, RECORDED)]
    assert len(rows) > 90
    assert [row for row in rows if not all(row)] == []


class _Torch:
    """Fake of torch, without CUDA or with a GPU of compute capability 8.6."""

    __version__ = "VERSION"

    def __init__(self, cuda: str | None) -> None:
        self.version = SimpleNamespace(cuda=cuda)
        self.cuda = SimpleNamespace(
            is_available=lambda: cuda is not None, init=self._init, get_device_capability=lambda: (8, 6)
        )

    def _init(self) -> None:
        raise AssertionError("Torch not compiled with CUDA enabled")


def rejection(function: Callable[[], object], path: str, replacement: str) -> list[str]:
    """Return message and remedy of the function's InputError, with the test's path replaced."""
    with pytest.raises(InputError) as caught:
        function()
    result = from_error(caught.value)
    return [result.message.replace(path, replacement), result.remedy.replace(path, replacement)]


def test_the_document_has_the_messages_of_bench_about_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(preflight, "GPU_DEVICE_FILE", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = SimpleNamespace(
        __version__="VERSION", __file__=f"{tmp_path}/__init__.py", cextension=SimpleNamespace(lib=0)
    )
    cuda_library = SimpleNamespace(cextension=SimpleNamespace(lib=type("Library", (), {"compiled_with_cuda": True})()))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "triton")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    trial, with_kernels = (suite(name, "gpu", "MODEL", "DATA")[-1] for name in ("quick", "recipes"))
    functions = (
        lambda: preflight.require_visible_gpu([], has_device_file=False, visible_devices=None),
        lambda: preflight.check(SimpleNamespace(torch=_Torch(None), bitsandbytes=library), trial),  # type: ignore[arg-type]
        lambda: preflight.check(SimpleNamespace(torch=_Torch("CUDA"), bitsandbytes=library), trial),  # type: ignore[arg-type]
        lambda: preflight.check(SimpleNamespace(torch=_Torch("CUDA"), bitsandbytes=cuda_library), with_kernels),  # type: ignore[arg-type]
    )
    assert_recorded({"gpu usable": [rejection(function, str(tmp_path), "/dev/nvidiactl") for function in functions]})


def test_the_document_has_the_messages_of_bench_about_model_and_data(tmp_path: Path) -> None:
    model, data = tmp_path / "MODEL", tmp_path / "DATA"
    read_model, read = partial(check_model, model), partial(read_data, data)
    rows = [rejection(read_model, f"{tmp_path}/", "")]
    model.mkdir()
    (model / "pytorch_model.bin").touch()
    rows += [rejection(read_model, f"{tmp_path}/", ""), rejection(read, f"{tmp_path}/", "")]
    for content in ("", '{"messages": [{"role": "user", "content": "?"}]}\n'):
        data.write_text(content)
        rows.append(rejection(read, f"{tmp_path}/", ""))
    assert_recorded({"models whole": rows})
