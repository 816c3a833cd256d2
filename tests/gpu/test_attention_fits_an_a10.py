"""Short attention's kernels, compiled for an A10, fit its shared memory and spill few registers. No GPU needed."""

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from bench.kernels import short_attention
from bench.kernels.rope import AttentionHeads
from tests.support.compiled_kernel import BF16, compiled_for_an_a10

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
QUERY_TILE = {"TOKENS": short_attention.QUERY_ROWS, "BLOCK": short_attention.QUERY_KEYS}
KEY_TILE = {"TOKENS": short_attention.KEY_ROWS, "BLOCK": short_attention.KEYS_KEPT}
HEADS = [AttentionHeads(query=32, key=8, width=128), AttentionHeads(query=9, key=3, width=64)]


@pytest.mark.parametrize("heads", HEADS, ids=["7B", "135M"])
@pytest.mark.parametrize(
    ("kernel", "tile", "stages"),
    [
        (short_attention._attention_forward, QUERY_TILE, 3),
        (short_attention._attention_dq, QUERY_TILE, 2),
        (short_attention._attention_dkv, KEY_TILE, 3),
    ],
    ids=["forward", "dq", "dkv"],
)
def test_a_kernel_of_short_attention_fits_an_a10(
    tmp_path, heads: AttentionHeads, kernel: Any, tile: dict[str, int], stages: int
):
    pack = short_attention._packed_heads(heads)
    constants = {"QUERIES": heads.query, "KEYS": heads.key, "WIDTH": heads.width, "COUNT": 64, "PACK": pack}
    constants |= {"TOKENS": tile["TOKENS"] // pack, "BLOCK": tile["BLOCK"]}
    kinds = dict.fromkeys(("joined", "out", "d_out", "d_joined"), BF16)
    kinds |= dict.fromkeys(("log_sums", "deltas", "cos", "sin"), "*fp32") | {"edges": "*i32", "scale_log2": "fp32"}
    compiled_for_an_a10(tmp_path, kernel, constants, kinds, warps=4, stages=stages, max_spilled_bytes=32)
