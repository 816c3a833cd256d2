import re

import pytest

from bench.machine.gpu_specs import CHIPS, lookup, share_percent
from tests.support.cases import Case, load_cases


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
    if (
        None not in (chip.bf16, chip.int8) and chip.names != r"GeForce RTX 4090"
    ):  # which computes fp32 sums at half rate
        assert chip.int8 / chip.bf16 == pytest.approx(2.0, rel=0.03)


def test_the_a10s_figures_are_the_published_ones():
    chip = lookup("NVIDIA A10")
    assert [chip.matmul_tflops(dtype) for dtype in ("bf16", "int8", "fp32")] == [125.0, 250.0, None]


def test_a_share_needs_both_figures():
    assert share_percent(475.0, 600.0) == pytest.approx(79.17, abs=0.01)  # the published 79 %
    assert share_percent(None, 600.0) is None
    assert share_percent(475.0, None) is None
    assert lookup(None) is None
