import re

import pytest

from bench.machine.gpu_specs import CHIPS, lookup, share_percent

DTYPES = ("fp32", "tf32", "bf16", "fp16", "int8", "fp8")


@pytest.mark.parametrize(
    ("name", "bf16", "memory_gb_per_sec", "memory_gb"),
    [
        ("NVIDIA A10", 125.0, 600.0, 24),
        ("NVIDIA A10G", 70.0, 600.0, 24),
        ("NVIDIA A100-SXM4-40GB", 312.0, 1555.0, 40),
        ("A100-SXM4-40GB", 312.0, 1555.0, 40),
        ("NVIDIA A100-PCIE-40GB", 312.0, 1555.0, 40),
        ("NVIDIA A100-SXM4-80GB", 312.0, 2039.0, 80),
        ("NVIDIA A100 80GB PCIe", 312.0, 1935.0, 80),
        ("NVIDIA L4", 121.0, 300.0, 24),
        ("NVIDIA L40S", 362.05, 864.0, 48),
        ("NVIDIA H100 80GB HBM3", 989.5, 3350.0, 80),
        ("NVIDIA H100 PCIe", 756.5, 2000.0, 80),
        ("NVIDIA H200", 989.5, 4800.0, 141),
        ("Tesla V100-SXM2-16GB", None, 900.0, 16),
        ("Tesla V100-PCIE-32GB", None, 900.0, 32),
        ("Tesla T4", None, 320.0, 16),
        ("T4", None, 320.0, 16),
        ("NVIDIA GeForce RTX 4090", 165.2, 1008.0, 24),
    ],
)
def test_a_chip_is_found_by_the_name_of_torch(name, bf16, memory_gb_per_sec, memory_gb):
    chip = lookup(name)
    assert chip is not None
    assert (chip.bf16, chip.memory_gb_per_sec, chip.memory_gb) == (bf16, memory_gb_per_sec, memory_gb)
    assert "datasheet" in chip.source or "whitepaper" in chip.source
    bare = name.removeprefix("NVIDIA ")
    assert [chip for chip in CHIPS if re.fullmatch(chip.names, bare)] == [chip], "no name matches two chips"


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "NVIDIA",
        "NVIDIA A1",
        "NVIDIA A10-24Q",
        "NVIDIA A100",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H100",
        "NVIDIA H200 NVL",
        "NVIDIA L40",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "Tesla V100S-PCIE-32GB",
        "AMD Instinct MI300X",
    ],
)
def test_a_chip_that_is_not_listed_has_no_figures(name):
    assert lookup(name) is None


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.names)
def test_figures_are_dense_and_keep_the_order_that_the_hardware_has(chip):
    """Detect a sparse figure among dense ones: halving the width at most doubles the rate."""
    figures = {dtype: chip.matmul_tflops(dtype) for dtype in DTYPES}
    assert chip.bf16 in (None, chip.fp16)
    if figures["tf32"] is not None:
        assert chip.fp16 / figures["tf32"] == pytest.approx(2.0, rel=0.03)
    if (
        figures["int8"] is not None and chip.names != r"GeForce RTX 4090"
    ):  # the RTX 4090 computes fp16 with fp32 sums at half rate
        assert figures["int8"] / chip.fp16 == pytest.approx(2.0, rel=0.03)


def test_the_a10s_figures_are_the_published_ones():
    chip = lookup("NVIDIA A10")
    assert [chip.matmul_tflops(dtype) for dtype in DTYPES] == [31.2, 62.5, 125.0, 125.0, 250.0, None]


def test_a_share_needs_both_figures():
    assert share_percent(475.0, 600.0) == pytest.approx(79.17, abs=0.01)  # the published 79 %
    assert share_percent(None, 600.0) is None
    assert share_percent(475.0, None) is None
