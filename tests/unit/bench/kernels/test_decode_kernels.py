"""Support checks and launch configurations of the decoding kernels. tests/gpu covers their results."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench.kernels.decode import attention, nvrtc, products  # noqa: E402
from bench.kernels.rope import AttentionHeads  # noqa: E402
from bench.workloads import decode_step  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # bitsandbytes warns at import
A10_SHARED_BYTES = 99 * 1024  # per block; a multiprocessor has 100 KiB


@pytest.mark.parametrize(
    ("rows", "columns", "options"),
    [
        (64, 256, {"quant_type": "fp4"}),
        (64, 256, {"compress_statistics": False}),
        (64, 256, {"blocksize": 128}),
        (24, 64, {}),
        (64, 32, {}),
    ],
)
def test_weights_of_other_formats_or_shapes_are_unsupported(quantized, rows, columns, options):
    assert products.supported_weight(quantized(rows, columns, **options)) is None


@pytest.mark.parametrize(
    ("columns", "rows", "joined", "expected"),
    [
        (
            4096,
            6144,
            True,
            (16, 1, 2, 1),
        ),  # Mistral's q, k, v: three parts of 16 warps, not 2 x 2 of eight
        (4096, 4096, False, (8, 2, 2, 1)),
        (4096, 28672, True, (8, 2, 2, 1)),
        (14336, 4096, False, (14, 1, 2, 2)),
        (11008, 4096, False, (15, 1, 2, 2)),  # Llama 2's down: 43 chunks
        (14336, 4112, False, (8, 2, 2, 1)),  # odd number of panels
        (8192, 8192, False, (16, 1, 2, 1)),
        (576, 960, True, (8, 2, 2, 1)),
    ],
)
def test_the_launch_config_follows_from_the_shape(columns, rows, joined, expected):
    configs = products.launch_configs(columns, rows // 16, 1, 132, is_single=not joined, has_norm=joined)
    assert configs[0] == expected
    assert configs[-len(products.DEFAULT_CONFIGS) :] == products.DEFAULT_CONFIGS
    assert (
        products.launch_configs(columns, rows // 16, 2, 132, is_single=not joined, has_norm=joined)
        == products.DEFAULT_CONFIGS
    )


def test_an_unquantized_weight_is_unsupported():
    assert products.supported_weight(torch.zeros(4, 4)) is None


def test_unsupported_heads_are_named():
    assert attention.unsupported_reason(AttentionHeads(query=32, key=8, width=128)) is None
    assert attention.unsupported_reason(AttentionHeads(query=4, key=2, width=96)) == "heads 96 wide, not 64 or 128"
    assert attention.unsupported_reason(AttentionHeads(query=48, key=4, width=64)) == "48 query heads for 4 key heads"


def test_the_fused_step_is_unsupported_on_a_cpu(modules):
    decoder: Any = SimpleNamespace(norm=SimpleNamespace(weight=torch.zeros(64)))
    heads = AttentionHeads(query=4, key=2, width=64)
    assert decode_step.not_fused_reason(modules, decoder, heads, batch=1, length=8) == "no GPU"


def test_some_launch_config_fits_an_a10s_shared_memory():
    """Check Mistral's products at every number of rows."""
    for weights in (1, 2, 3):
        for tiles in (1, 2, 4):
            for rank in (0, 16, 64):
                shared = [products.shared_bytes(weights, 14336, tiles, each, rank) for each in products.DEFAULT_CONFIGS]
                assert min(shared) <= A10_SHARED_BYTES, (weights, tiles, rank)


@pytest.mark.parametrize(
    ("kib", "rows", "rank", "reason"),
    [
        (100, 32, 64, None),
        (100, 32, 128, "rank 128 for 32 sequences"),
        (100, 8, 128, None),
        (228, 32, 128, None),
    ],
)
def test_adapters_that_exceed_a_gpus_shared_memory_are_named(monkeypatch, kib, rows, rank, reason):
    properties = SimpleNamespace(shared_memory_per_multiprocessor=kib * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    error = products.capacity_error("cuda", 14336, rows, rank)
    assert error is None if reason is None else reason in str(error)


# Multiprocessors and KiB of shared memory per multiprocessor: A100, A10, L4, H100.
GPUS = {"sm_80": (108, 164), "sm_86": (72, 100), "sm_89": (58, 100), "sm_90": (132, 228)}


@pytest.mark.parametrize("architecture", GPUS)
@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_the_kernels_compile_for_each_gpu_without_much_spilling(architecture, tiles):
    """Compile Mistral's products with each GPU's configuration. Needs NVRTC: `pip install nvidia-cuda-nvrtc`."""
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
        configs = products.launch_configs(
            columns, rows // products.PANEL_ROWS, tiles, processors, is_single=weights == 1, has_norm=has_norm
        )
        config = products.first_fitting(configs, properties, weights, columns, tiles, rank)
        constants = {
            "COLUMNS": columns,
            "WEIGHTS": weights,
            "NORM": int(has_norm),
            "GATED": int(gated),
            "RANK": rank,
            "TILES": tiles,
            "X_BLOCK_ROWS": 8,
            "A_BLOCK_ROWS": 1,
            **{name.upper(): number for name, number in config._asdict().items()},
        }
        assert _spilled(products.HERE / "products.cu", architecture, constants) < 200, config
    assert _spilled(attention.SOURCE, architecture, {"WIDTH": 128, "GROUP": 4, "KEYS": 8}) < 200


def _spilled(source: Any, architecture: str, constants: dict[str, int]) -> int:
    """Return the bytes of registers that a thread spills."""
    binary, report = nvrtc.compile_source(source, architecture, tuple(constants.items()))
    assert binary.startswith(b"\x7fELF")
    (spilled,) = re.findall(r"(\d+) bytes spill stores", report)
    return int(spilled)
