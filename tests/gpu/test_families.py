"""Every family that `fast` computes, on a real GPU: loss and each adapter gradient in bf16 and with products in 8 bits.

    python -m pytest -c /dev/null --rootdir . --import-mode=importlib -s tests/gpu/test_families.py

Errors are against float32 on the same GPU and the same quantized base. Sizes are multiples of no tile of the kernels.
"""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench.qlora.step import Placement  # noqa: E402 - after the skip
from tests.support import families  # noqa: E402
from tests.support.families import gradient_errors  # noqa: E402
from tests.support.gpu import on_gpu  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), on_gpu, pytest.mark.usefixtures("_cuda")]
SIZES = {"hidden_size": 320, "intermediate_size": 704, "num_attention_heads": 4, "head_dim": 80}
LENGTHS = (120, 47, 83)
LOSS_BOUNDS = {"bf16": 0.01, "int8": 0.02}
GRADIENT_BOUNDS = {"bf16": 0.02, "int8": 0.2}  # in addition to twice the reference's own error


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("case", [case for case in families.families() if "fast" in case.values[0]["expected"]])
def test_the_kernels_have_pefts_loss_and_gradients(modules, make_trial, tmp_path, case, dropout):
    sizes: dict[str, Any] = {**case["input"], **SIZES, **families.WIDE}
    folder = families.write_model(modules, tmp_path / "model", **sizes)

    def run(dtype: Any, **changes: Any) -> dict[str, families.LossAndGradients]:
        trial = make_trial(
            model=str(folder), max_seq_len=128, micro_batch_size=len(LENGTHS), lora_dropout=dropout, **changes
        )
        return families.run_recipe(
            modules, Placement(device=torch.device("cuda", 0), compute_dtype=dtype), trial, LENGTHS
        )

    expected, rounded = (run(dtype, recipe="reference") for dtype in (torch.float32, torch.bfloat16))
    for matmul, bound in GRADIENT_BOUNDS.items():
        results = run(torch.bfloat16, recipe="fast", matmul=matmul, held_layers=1)
        for layout in ("pad", "varlen"):
            library = gradient_errors(rounded[layout], expected[layout])
            errors = gradient_errors(results[layout], expected[layout])
            worst = max(errors, key=lambda name: errors[name] - 2 * library[name])
            print(f"{matmul} {layout}: {worst}: {errors[worst]:.4f}, reference {library[worst]:.4f}")
            assert results[layout][0] == pytest.approx(expected[layout][0], rel=LOSS_BOUNDS[matmul])
            assert errors[worst] < 2 * library[worst] + bound
