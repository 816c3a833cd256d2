import re

import pytest

from bench.machine.gpu_specs import CHIPS, lookup, share_percent
from tests.support.cases import Case, load_cases

DTYPES = ("fp32", "tf32", "bf16", "fp16", "int8", "fp8")


@pytest.mark.parametrize("case", load_cases(__file__, "chips.yaml"))
def test_a_chip_is_found_by_its_exact_name(case: Case):
    chip, bare = lookup(case["name"]), case["name"].removeprefix("NVIDIA ")
    assert (chip and [chip.bf16, chip.memory_gb_per_sec, chip.memory_gb]) == case["expected"]
    matches = [known for known in CHIPS if re.fullmatch(known.names, bare)]
    assert matches == ([chip] if chip else []), "no name matches two chips"
    assert not chip or "datasheet" in chip.source or "whitepaper" in chip.source


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
    assert lookup(None) is None
