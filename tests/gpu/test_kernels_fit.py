"""Every Triton kernel compiles for an A10 (sm_86), an L4 (sm_89) and an H100 (sm_90) within its memory and registers.

The launches are those of the steps that `python -m bench kernels` compiles, at the shapes of the 7B and the 135M model,
and a few that only other steps have. No GPU is needed, only triton: `pip install --no-deps --target DIR
triton==3.6.0`, then PYTHONPATH=DIR.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from bench import torch_stack  # noqa: E402 - after the skips
from bench.commands import kernels  # noqa: E402
from bench.kernels import pinned_gather, rope, swiglu  # noqa: E402
from bench.kernels.groups import Groups, combine  # noqa: E402
from bench.kernels.int8 import row_quant  # noqa: E402
from bench.records import choose, suite  # noqa: E402
from bench.records.validation import ALL_LINEAR  # noqa: E402
from tests.model_shapes import SHAPES  # noqa: E402
from tests.support import compiled_kernel  # noqa: E402
from tests.support.compiled_kernel import CompiledLaunch  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]
MODELS = ("mistral-7b", "smollm2-135m")
# Bytes of registers that a thread of a kernel may spill, measured; 0 for the others.
MAX_SPILLED = {
    "_int8_matmul": 900, "_attention_dkv": 32, "_int8_swiglu_forward": 48, "_int8_swiglu_backward": 24,
    "_lora_down": 12,
}  # fmt: skip


def meta(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a folder for each model, which has its config.json only."""
    root = tmp_path_factory.mktemp("models")
    for name in MODELS:
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(SHAPES[name].config))
    return root


@cache
def compiled(capability: int, model: Path) -> tuple[CompiledLaunch, ...]:
    stack = torch_stack.load()
    (trial,) = choose(suite("quick", "gpu", str(model), "none"), ("train",))
    with compiled_kernel.recorded_launches(capability) as launches:
        for variant in kernels.variants(trial, lora_targets=ALL_LINEAR):
            kernels.run_steps(stack, variant)
        kernels.update_adapters()
        indices, hidden = meta(4096, dtype=torch.int64), SHAPES[model.name].config["hidden_size"]
        q, angles = meta(4096, 8, 64), meta(4096, 32, dtype=torch.float32)
        rope.unrotate(q, q, q, angles, angles, rope.AttentionHeads(query=8, key=8, width=64))
        pinned_gather.gather_rows(meta(32768, hidden), indices)
        groups = Groups(order=indices, tokens=indices, experts=indices, places=indices, ends=indices, choices=2)
        combine(meta(4096, hidden), groups, meta(2048, 2))
        swiglu.swiglu(meta(4096, 2 * hidden))
        row_quant.quantize_rows(meta(4096, hidden), factors=meta(hidden, dtype=torch.float32))
    return tuple(launches)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("capability", compiled_kernel.SHARED_BYTES)
def test_each_kernel_fits_the_target(folder, capability, model):
    for each in compiled(capability, folder / model):
        assert each.shared <= compiled_kernel.SHARED_BYTES[capability], each.name
        assert each.registers <= compiled_kernel.MAX_REGISTERS
        assert each.registers * 32 * each.warps <= compiled_kernel.REGISTERS, each.name
        assert each.spilled <= MAX_SPILLED.get(each.name, 0), each.name
        assert capability >= 90 or "wgmma" not in each.ptx


@pytest.mark.parametrize("capability", compiled_kernel.SHARED_BYTES)
def test_no_kernel_is_left_out(folder, capability):
    names = {each.name for each in compiled(capability, folder / MODELS[0])}
    assert names == compiled_kernel.defined_kernels()["launched"]
