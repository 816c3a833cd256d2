"""Tests of docs/troubleshooting.md: it matches the checks, and has every promised problem."""

import importlib.util
import os
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.data.inputs import InputError
from bench.data.model_folder import check_model
from bench.data.readers import read_data
from bench.machine import preflight
from bench.records import suite
from remote.providers import GENERIC, PROVIDERS, REMEDIES
from tasks.doctor.check import Check
from tasks.doctor.doctor import all_checks
from tasks.faults import CheckStatus, Fault, from_error
from tests.support.paths import ROOT
from tests.unit.tasks.doctor import fault_examples

DOCUMENT = ROOT / "docs" / "troubleshooting.md"
HEADER = """\
# Troubleshooting

Generated from the checks (`tasks/doctor/checks`): it has the same texts as `inv doctor`.
`inv doctor` runs all checks at once, in at most 20 s, and prints one line for each: the finding, and the command or
setting that fixes it. `inv doctor --only cluster,nodes` runs some of them; `--json` is for programs. The exit code is 0
without problems, 1 with a problem to fix, and 3 if all problems may be transient.

{statuses}

An invalid settings file is reported before any check, in one line with file and line number (exit code 2).
"""
Messages = Mapping[str, Sequence[Sequence[str]]]


def test_the_document_is_up_to_date(messages: Messages) -> None:
    text = render(all_checks(), messages)
    if os.environ.get("UPDATE_GOLDEN"):
        DOCUMENT.write_text(text, encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == text


def test_every_check_asks_a_question_and_has_a_title_of_its_own(messages: Messages) -> None:
    titles = {check.title for check in all_checks()}
    assert [check.title for check in all_checks() if "?" not in check.question] == []
    assert len(titles) == len(all_checks())
    assert messages.keys() <= titles


def test_every_fault_has_a_remedy(messages: Messages) -> None:
    rows = [row for check in all_checks() for row in document_rows(check, messages)]
    assert len(rows) > 90
    assert [row for row in rows if not all(row)] == []


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Messages:
    """Messages of other modules that a check passes on, by its title."""
    bench = {"gpu usable": gpu_rows(monkeypatch, tmp_path), "models whole": input_rows(tmp_path)}
    return {**fault_examples.messages(), **bench}


def render(checks: Sequence[Check], messages: Messages) -> str:
    statuses = " · ".join(f"{status.mark} {status.label}" for status in CheckStatus)
    parts = [HEADER.format(statuses=f"{statuses}, with the reason")]
    for subject, group in groupby(checks, key=lambda check: check.subject):
        parts.append(f"## {subject}\n")
        for check in group:
            parts.append(f"**{check.title}**: {check.question}\n")
            if rows := document_rows(check, messages):
                parts.append(_table("message", "fix", rows))
    for provider in PROVIDERS.values():
        if provider.remedies:
            parts.append(f"## On provider {provider.name}\n")
            rows = [(REMEDIES[key], remedy) for key, remedy in provider.remedies.items()]
            parts.append(_table("fix above", "fix there", rows))
    return "\n".join(parts)


def document_rows(check: Check, messages: Messages) -> list[tuple[str, str]]:
    """Return the possible (message, remedy) pairs of a check without duplicates."""
    own = [document_row(fault) for fault in check.faults]
    return list(dict.fromkeys((*own, *((message, remedy) for message, remedy in messages.get(check.title, ())))))


def _table(first: str, second: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = (f"| {_escape_cell(left)} | {_escape_cell(right)} |" for left, right in rows)
    return "\n".join((f"| {first} | {second} |", "|---|---|", *lines)) + "\n"


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def document_row(fault: Fault) -> tuple[str, str]:
    """Return message and remedy for the document, each {name} as NAME."""
    parse = string.Formatter().parse
    names = {name for text in (fault.message, fault.remedy) for _, name, _, _ in parse(text) if name}
    capitals = {name: GENERIC.texts.get(name, name.upper().replace("_", "-")) for name in names}
    return fault.message.format_map(capitals), fault.remedy.format_map(capitals)


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


def gpu_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    monkeypatch.setattr(preflight, "GPU_DEVICE_FILE", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(preflight.nvml, "visible_gpus", list)
    monkeypatch.setattr(preflight.nvml, "has_device_file", lambda: False)
    library = SimpleNamespace(
        __version__="VERSION", __file__=f"{tmp_path}/__init__.py", cextension=SimpleNamespace(lib=0)
    )
    cuda_library = SimpleNamespace(cextension=SimpleNamespace(lib=type("Library", (), {"compiled_with_cuda": True})()))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "triton")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    trial, with_kernels = (suite(name, "gpu", "MODEL", "DATA")[-1] for name in ("quick", "recipes"))
    functions = (
        lambda: preflight.require_gpus_for("gpu"),
        lambda: preflight.check(SimpleNamespace(torch=_Torch(None), bitsandbytes=library), trial),  # type: ignore[arg-type]
        lambda: preflight.check(SimpleNamespace(torch=_Torch("CUDA"), bitsandbytes=library), trial),  # type: ignore[arg-type]
        lambda: preflight.check(SimpleNamespace(torch=_Torch("CUDA"), bitsandbytes=cuda_library), with_kernels),  # type: ignore[arg-type]
    )
    return [rejection(function, str(tmp_path), "/dev/nvidiactl") for function in functions]


def input_rows(tmp_path: Path) -> list[list[str]]:
    model, data = tmp_path / "MODEL", tmp_path / "DATA"
    read_model, read = partial(check_model, model), partial(read_data, data)
    rows = [rejection(read_model, f"{tmp_path}/", "")]
    model.mkdir()
    (model / "pytorch_model.bin").touch()
    rows += [rejection(read_model, f"{tmp_path}/", ""), rejection(read, f"{tmp_path}/", "")]
    for content in ("", '{"messages": [{"role": "user", "content": "?"}]}\n'):
        data.write_text(content)
        rows.append(rejection(read, f"{tmp_path}/", ""))
    return rows
