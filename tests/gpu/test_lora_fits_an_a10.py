"""LoRA's kernels, compiled for an A10, fit its shared memory and spill no registers. No GPU needed."""

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from bench.kernels import lora, lora_out
from tests.support.compiled_kernel import BF16, compiled_for_an_a10

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
A10 = (8, 6)
DOWN = {"SPLITS": 4, "SPLIT": 1024, "TOKENS": lora.TOKENS, "COLUMNS": lora.down_tile_columns(A10, 2)}
BACK = {
    "SPLIT": lora_out.backward_tokens(A10),
    "RANKS": lora_out.BACKWARD_RANKS,
    "CHUNK": 512,
    "COLUMNS": lora_out.BACKWARD_COLUMNS,
}
BOTH = {"SPLIT": lora.SPLIT_TOKENS, "TOKENS": lora.TOKENS, "NORMED": True}


@pytest.mark.parametrize(
    ("kernel", "constants", "stages"),
    [
        (lora._lora_down, DOWN | {"RANK": 16, "RANKS": 16, "TOGETHER": 3}, 3),
        (lora._lora_down, DOWN | {"RANK": 64, "RANKS": 64, "TOGETHER": 1}, 3),
        (lora._lora_backward, BOTH | {"RANK": 16, "RANKS": 16, "TARGETS": 3, "COLUMNS": lora.COLUMNS // 2}, 1),
        (lora._lora_backward, BOTH | {"RANK": 64, "RANKS": 64, "TARGETS": 1, "COLUMNS": lora.COLUMNS // 2}, 1),
        (lora._lora_sum, {"RANK": 16, "RANKS": 16, "TARGETS": 3, "TOKENS": lora.TOKENS}, 3),
        (lora_out._lora_out_gradients, BACK | {"RANK": 16}, 3),
        (lora_out._lora_out_gradients, BACK | {"RANK": 64}, 3),
    ],
)
def test_a_kernel_of_lora_fits_an_a10(tmp_path, kernel: Any, constants: dict[str, Any], stages: int):
    kinds = dict.fromkeys(("x", "a", "u", "d_x", "d_u", "d_y", "b", "weight", "out"), BF16)
    names = [parameter.name for parameter in kernel.params]
    drops = {"DROPS": True} if "DROPS" in names else {}
    compiled_for_an_a10(
        tmp_path,
        kernel,
        constants | drops,
        kinds,
        warps=8 if kernel is lora_out._lora_out_gradients else 4,
        stages=stages,
    )
