"""Every family of models: loss and each adapter gradient by transformers and peft, and by every recipe.

In float32 and bf16 on a CPU, where products in 8 bits are computed in PyTorch. Not covered: the Triton kernels
(tests/gpu/test_families.py).
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bench.qlora.recipes import fast
from bench.qlora.step import Placement
from tests.support import families
from tests.support.families import LossAndGradients, gradient_errors
from tests.support.paths import ROOT
from tests.support.thorough import THOROUGH, only_thorough

# `torch_stack.load` filters this warning for the process; pytest resets the filter for every test.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")]
DTYPES = torch.float32, torch.bfloat16
# Separate layers, joined layers, a recipe of the library, experts. Of the others, float32 without dropout is compared,
# and only the recipe with the most code of its own.
WHOLE = ("mistral", "phi3", "gemma2", "qwen3 with experts")
# Largest relative error of (loss, each gradient) against float32. In bf16 each gradient's error is compared with the
# reference's own.
BOUNDS = {
    (torch.float32, "bf16"): (1e-6, 2e-5),
    (torch.float32, "int8"): (0.005, 0.15),
    (torch.bfloat16, "bf16"): (0.01, 0.0),
}


@pytest.fixture
def run(modules, folder_of, make_trial, monkeypatch) -> Callable[..., dict[str, LossAndGradients]]:
    """Return a function that computes loss and gradients of one recipe, for each layout."""
    monkeypatch.setattr(fast.int8, "unsupported_reason", lambda *_: None)  # the arithmetic in plain PyTorch

    def compute(config: dict[str, Any], dtype: Any, **changes: Any) -> dict[str, LossAndGradients]:
        fields = {"max_seq_len": families.MAX_SEQ_LEN, "micro_batch_size": len(families.LENGTHS), "lora_rank": 4}
        trial = make_trial(model=str(folder_of(**config, **families.WIDE)), **fields, **changes)
        return families.run_recipe(modules, Placement(device=torch.device("cpu"), compute_dtype=dtype), trial)

    return compute


@pytest.mark.parametrize(
    ("case", "dropout"),
    [
        pytest.param(
            case,
            dropout,
            id=f"{case['name']}-{dropout}",
            marks=only_thorough if dropout and case["name"] not in WHOLE else (),
        )
        for (case,) in (parameters.values for parameters in families.families())
        for dropout in (0.0, 0.2)
    ],
)
def test_every_recipe_has_pefts_loss_and_gradients(run, case, dropout):
    fields = {"config": case["input"], "lora_dropout": dropout}
    is_whole = THOROUGH or (case["name"] in WHOLE and not dropout)
    dtypes, recipes = (DTYPES, case["expected"]) if is_whole else (DTYPES[:1], case["expected"][-1:])
    expected, *rounded = (run(dtype=dtype, recipe="reference", **fields) for dtype in dtypes)
    if not dropout:
        single = expected.pop("single")
        for result in expected.values():
            assert result[0] == pytest.approx(single[0], rel=1e-6)
            assert max(gradient_errors(result, single).values()) < 2e-5
    runs = [(recipe, "bf16", dtype) for recipe in recipes for dtype in dtypes]
    if is_whole and "fast" in recipes:
        runs.append(("fast", "int8", torch.float32))
    for recipe, matmul, dtype in runs:
        loss_bound, gradient_bound = BOUNDS[dtype, matmul]
        results = run(dtype=dtype, recipe=recipe, matmul=matmul, **fields)
        for layout, exact in expected.items():
            assert results[layout][0] == pytest.approx(exact[0], rel=loss_bound)
            library = gradient_errors(rounded[0][layout], exact) if rounded else {}
            for name, error in gradient_errors(results[layout], exact).items():
                limit = gradient_bound or 2 * (library[name] + 0.01)
                assert error < limit, (recipe, matmul, dtype, layout, name)


@pytest.mark.parametrize("case", families.families())
def test_the_documented_table_has_these_bounds(case):
    config = families.SIZES | case["input"]
    table = re.findall(r"^\| (\w+) \| ([^|]+) \| (.+) \|$", (ROOT / "docs/training.md").read_text(), re.MULTILINE)
    (cells,) = (cells.split(" | ") for name, _, cells in table if name == config["model_type"])
    fast = [BOUNDS[torch.float32, matmul][1] for matmul in ("bf16", "int8")]
    columns = map(str, fast if "fast" in case["expected"] else ("refused",) * 2)
    assert cells == [str(BOUNDS[torch.float32, "bf16"][1]), *columns]
