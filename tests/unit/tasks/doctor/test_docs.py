"""docs/troubleshooting.md is what the checks say, and holds every entry of the knowledge that users were promised."""

import importlib.util
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.data.conversations import read_data
from bench.data.inputs import InputError
from bench.data.model_folder import check_model
from bench.machine import isolation, preflight
from bench.records import suite
from tasks.doctor import examples
from tasks.doctor.docs import DOCUMENT, text
from tasks.doctor.registry import CHECKS
from tasks.doctor.result import from_error
from tests.support.paths import ROOT


def test_the_document_is_what_the_checks_say() -> None:
    written = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    assert written == text(CHECKS), "type `inv doctor --document`, and read the difference"


# What goes wrong, and a word of the remedy beside it.
KNOWLEDGE = {
    "disk full here": r"free: results cannot be kept \| free space",
    "disk full on the VM": r"GB free, this build needs .* \| free some",
    "disk full on a node": r"the node's disk is full \| grow its boot volume",
    "dependency conflict": r"packages conflict: .* \| `make install`",
    "CPU-only bitsandbytes": r"bitsandbytes VERSION has no GPU support .* \| install the wheel",
    "CUDA not visible": r"torch VERSION cannot use it: .* \| install torch's CUDA build",
    "model not found": r"no such model folder \| `inv model.demo`",
    "model not on the VM": r"not on the VM at .* \| `inv model.fetch`",
    "image pull: login": r"asks for a login \(401\) \| the user name is",
    "image pull: no such image": r"the registry has no such image \| `inv push`",
    "image pull: network": r"does not answer the node \| the nodes need a way",
    "GPU not detected on a node": r"no nvidia.com/gpu allocatable: no device plugin .* \| enable the NVIDIA GPU plugin",
    "GPU not detected here": r"needs an NVIDIA GPU, and none is here .* \| in a pod, request",
    "out of GPU memory": r"ran out of GPU memory \| `inv tune`",
    "out of memory": r"used more memory than its limit.* \| raise cluster.memory",
    "slow settings": r"threads of SIZE workers on CORES cores.* \| lower fleet.size",
}


@pytest.mark.parametrize("entry", KNOWLEDGE)
def test_every_entry_of_troubleshooting_knowledge_is_a_check_with_a_remedy(entry: str) -> None:
    assert re.search(KNOWLEDGE[entry], text(CHECKS))


def test_every_check_asks_a_question_and_has_a_title_of_its_own() -> None:
    assert [check.title for check in CHECKS if "?" not in check.asks] == []
    assert len({check.title for check in CHECKS}) == len(CHECKS)


def test_every_fault_says_what_mends_it() -> None:
    rows = [row for check in CHECKS for row in check.rows()]
    assert len(rows) > 90
    assert [row for row in rows if not all(row)] == []


class _Torch:
    """A torch without CUDA, or one with a GPU of these capabilities."""

    __version__ = "VERSION"

    def __init__(self, cuda: str | None) -> None:
        self.version = SimpleNamespace(cuda=cuda)
        self.cuda = SimpleNamespace(
            is_available=lambda: cuda is not None, init=self._init, get_device_capability=lambda: (8, 6)
        )

    def _init(self) -> None:
        raise AssertionError("Torch not compiled with CUDA enabled")


def refused(act: Callable[[], object], named: str, shown: str) -> tuple[str, str]:
    """What is found and what mends it, where the act is refused; the path that the test has is shown as another."""
    with pytest.raises(InputError) as caught:
        act()
    answer = from_error(str(caught.value).replace(named, shown))
    return answer.found, answer.remedy


def test_what_bench_says_of_a_gpu_is_what_the_document_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(preflight, "GPU_DEVICE_FILE", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = SimpleNamespace(
        __version__="VERSION", __file__=f"{tmp_path}/__init__.py", cextension=SimpleNamespace(lib=0)
    )
    whole = SimpleNamespace(cextension=SimpleNamespace(lib=type("Library", (), {"compiled_with_cuda": True})()))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "triton")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    trial, with_kernels = (suite(name, "gpu", "MODEL", "DATA")[-1] for name in ("quick", "recipes"))
    acts = (
        lambda: isolation.require_gpu([], is_there=False, chosen=None),
        lambda: preflight.check(SimpleNamespace(torch=_Torch(None), bitsandbytes=library), trial),  # type: ignore[arg-type]
        lambda: preflight.check(SimpleNamespace(torch=_Torch("CUDA"), bitsandbytes=library), trial),  # type: ignore[arg-type]
        lambda: preflight.check(SimpleNamespace(torch=_Torch("CUDA"), bitsandbytes=whole), with_kernels),  # type: ignore[arg-type]
    )
    assert [refused(act, str(tmp_path), "/dev/nvidiactl") for act in acts] == list(examples.gpu())


def test_what_bench_says_of_model_and_data_is_what_the_document_says(tmp_path: Path) -> None:
    model, data = tmp_path / "MODEL", tmp_path / "DATA"
    look, read = partial(check_model, model), partial(read_data, data)
    said = [refused(look, f"{tmp_path}/", "")]
    model.mkdir()
    (model / "pytorch_model.bin").touch()
    said += [refused(look, f"{tmp_path}/", ""), refused(read, f"{tmp_path}/", "")]
    for content in ("", '{"messages": [{"role": "user", "content": "?"}]}\n'):
        data.write_text(content)
        said.append(refused(read, f"{tmp_path}/", ""))
    assert said == list(examples.inputs())
