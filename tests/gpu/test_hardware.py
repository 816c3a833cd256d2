"""The hardware trial on a real GPU: every supported product at full size, with plausible shares of the data sheet."""

import time

import pytest

from bench.machine.gpu_specs import lookup
from bench.records import suite
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from bench.workloads.hardware import FULL, MIN_CAPABILITY
from tests.support.gpu import on_gpu, run_trial

COPIES = ("device_copy_gb_per_sec", "host_to_device_gb_per_sec", "device_to_host_gb_per_sec")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), on_gpu, pytest.mark.usefixtures("_cuda")]


@pytest.fixture(scope="module")
def result(tmp_path_factory, tiny_model, demo_data) -> TrialResult:
    (trial,) = suite("hardware", "gpu", str(tiny_model), str(demo_data))
    return run_trial(trial, tmp_path_factory.mktemp("hardware"))


def test_every_product_and_copy_is_measured_with_a_plausible_share(result):
    assert (result.status, result.reason) == (TrialStatus.SUCCEEDED, None)
    major, _, minor = result.fingerprint["gpu_compute_capability"].partition(".")
    products = {(m.context["dtype"], m.context["size"]): m for m in result.measurements if m.name == "matmul_tflops"}
    assert products.keys() == {(dtype, size) for dtype in FULL.dtypes for size in FULL.sizes}
    for (dtype, _size), measurement in products.items():
        lacks = (int(major), int(minor)) < MIN_CAPABILITY.get(dtype, (0, 0))
        assert (measurement.value is None) == lacks, (dtype, measurement.note)
    copies = {m.name: m for m in result.measurements if m.name in COPIES}
    assert copies.keys() == set(COPIES)
    assert all(m.value is not None and m.value > 1 for m in copies.values())
    # Slightly above 100 % is a clock above the data sheet's; 200 % would be a wrong figure.
    shares = [m.share_percent for m in (*products.values(), copies[COPIES[0]]) if m.share_percent is not None]
    assert bool(shares) == (lookup(result.fingerprint["gpu_name"]) is not None)
    assert all(5 < share < 115 for share in shares)


def test_the_quick_ceiling_agrees_with_the_full_measurement(result):
    from types import SimpleNamespace

    import torch

    from bench.workloads.hardware import matmul_tflops
    from bench.workloads.training import GPU_CEILING

    placement = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))
    session = SimpleNamespace(modules=SimpleNamespace(torch=torch), placement=placement)
    size, budget_sec = GPU_CEILING
    matmul_tflops(session, "bf16", size, budget_sec=budget_sec, operand_bytes=0)  # type: ignore[arg-type]
    start = time.monotonic()
    quick = matmul_tflops(session, "bf16", size, budget_sec=budget_sec, operand_bytes=0)  # type: ignore[arg-type]
    print(f"quick bf16 ceiling: {quick.median:.0f} TFLOP/s in {time.monotonic() - start:.2f} s")
    (whole,) = (
        m.value
        for m in result.measurements
        if m.name == "matmul_tflops" and m.context == {"dtype": "bf16", "size": 8192}
    )
    assert quick.median == pytest.approx(whole, rel=0.2)
