"""What a decoding step's kernels cover, and that they fit an A10. What they compute needs a GPU: tests/gpu."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench.kernels.decode import attention, nvrtc, products  # noqa: E402
from bench.kernels.rope import AttentionHeads  # noqa: E402
from bench.workloads import fused_step  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # bitsandbytes speaks at import
A10_SHARED_BYTES = 99 * 1024  # to a block; 100 KiB to a multiprocessor


@pytest.mark.parametrize(
    ("rows", "columns", "how"),
    [
        (64, 256, {"quant_type": "fp4"}),
        (64, 256, {"compress_statistics": False}),
        (64, 256, {"blocksize": 128}),
        (24, 64, {}),
        (64, 32, {}),
    ],
)
def test_weights_kept_another_way_or_that_fill_no_tile_are_left_to_the_library(quantized, rows, columns, how):
    assert products.covered(quantized(rows, columns, **how)) is None


@pytest.mark.parametrize(
    ("columns", "rows", "joined", "divided"),
    [
        (4096, 6144, True, (16, 1, 2, 1)),  # Mistral's q, k, v: three parts of 16 warps, not twice two of eight
        (4096, 4096, False, (8, 2, 2, 1)),
        (4096, 28672, True, (8, 2, 2, 1)),
        (14336, 4096, False, (14, 1, 2, 2)),
        (11008, 4096, False, (15, 1, 2, 2)),  # Llama 2's down: 43 chunks
        (14336, 4112, False, (8, 2, 2, 1)),  # no pairs of panels
        (8192, 8192, False, (16, 1, 2, 1)),
        (576, 960, True, (8, 2, 2, 1)),
    ],
)
def test_how_a_product_is_divided_follows_from_its_shape(columns, rows, joined, divided):
    found = products.divisions(columns, rows // 16, 1, 132, is_single=not joined, has_norm=joined)
    assert found[0] == divided
    assert found[-len(products.DIVISIONS) :] == products.DIVISIONS
    assert products.divisions(columns, rows // 16, 2, 132, is_single=not joined, has_norm=joined) == products.DIVISIONS


def test_a_weight_that_is_not_quantized_is_left_alone():
    assert products.covered(torch.zeros(4, 4)) is None


def test_heads_that_no_kernel_is_for_are_named():
    assert attention.unsupported_reason(AttentionHeads(query=32, key=8, width=128)) is None
    assert attention.unsupported_reason(AttentionHeads(query=4, key=2, width=96)) == "heads 96 wide, not 64 or 128"
    assert attention.unsupported_reason(AttentionHeads(query=48, key=4, width=64)) == "48 query heads for 4 key heads"


def test_on_a_cpu_the_fused_step_is_not_for_it_and_says_so(modules):
    decoder: Any = SimpleNamespace(norm=SimpleNamespace(weight=torch.zeros(64)))
    assert (
        fused_step.unsupported_reason(modules, decoder, AttentionHeads(query=4, key=2, width=64), batch=1) == "no GPU"
    )


def test_shared_memory_of_every_division_is_within_an_a10s():
    """Mistral's products, at every number of rows."""
    for weights in (1, 2, 3):
        for tiles in (1, 2, 4):
            for rank in (0, 16, 64):
                shared = [products.shared_bytes(weights, 14336, tiles, each, rank) for each in products.DIVISIONS]
                assert min(shared) <= A10_SHARED_BYTES, (weights, tiles, rank)


@pytest.mark.parametrize(
    ("kib", "rows", "rank", "why"),
    [
        (100, 32, 64, None),
        (100, 32, 128, "adapters of rank 128 for 32 sequences: too much for the GPU's shared memory"),
        (100, 8, 128, None),
        (228, 32, 128, None),
    ],
)
def test_adapters_that_a_gpus_shared_memory_is_too_small_for_are_named(monkeypatch, kib, rows, rank, why):
    properties = SimpleNamespace(shared_memory_per_multiprocessor=kib * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert products.why_no_room("cuda", 14336, rows, rank) == why


# Multiprocessors, and KiB of shared memory of each: A100, A10, L4, H100.
GPUS = {"sm_80": (108, 164), "sm_86": (72, 100), "sm_89": (58, 100), "sm_90": (132, 228)}


@pytest.mark.parametrize("architecture", GPUS)
@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_the_kernels_compile_for_each_gpu_without_much_spilling(architecture, tiles):
    """As Mistral's products are divided there. Needs no GPU, but CUDA's compiler: `pip install nvidia-cuda-nvrtc`."""
    if (reason := nvrtc.unsupported_reason()) is not None:
        pytest.skip(reason)
    processors, kib = GPUS[architecture]
    properties = SimpleNamespace(shared_memory_per_multiprocessor=kib * 1024)
    for columns, rows, weights, has_norm, gated, rank in (
        (4096, 6144, 3, True, False, 16),
        (4096, 4096, 1, False, False, 16),
        (4096, 28672, 2, True, True, 0),
        (14336, 4096, 1, False, False, 0),
    ):
        wanted = products.divisions(
            columns, rows // products.HIGH, tiles, processors, is_single=weights == 1, has_norm=has_norm
        )
        division = products.fitting(wanted, properties, weights, columns, tiles, rank)
        constants = {
            "COLUMNS": columns,
            "WEIGHTS": weights,
            "NORM": int(has_norm),
            "GATED": int(gated),
            "RANK": rank,
            "TILES": tiles,
            "SIDE": 8,
            "OF_U": 1,
            **{name.upper(): number for name, number in division._asdict().items()},
        }
        assert _spilled(products.HERE / "products.cu", architecture, constants) < 200, division
    assert _spilled(attention.SOURCE, architecture, {"WIDTH": 128, "GROUP": 4, "KEYS": 8}) < 200


def _spilled(source: Any, architecture: str, constants: dict[str, int]) -> int:
    """Bytes that a thread stores for want of registers."""
    binary, report = nvrtc.compiled(source, architecture, tuple(constants.items()))
    assert binary.startswith(b"\x7fELF")
    (spilled,) = re.findall(r"(\d+) bytes spill stores", report)
    return int(spilled)
