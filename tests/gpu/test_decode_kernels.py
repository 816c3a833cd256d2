"""The product of few rows with NF4 weights, against its plain PyTorch formula, on fresh random inputs."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench.kernels import nf4, nf4_linear  # noqa: E402 - after the skip

DRIVER = Path("/dev/nvidiactl")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not DRIVER.exists(), reason=f"no NVIDIA GPU: {DRIVER} is missing"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
# Mistral's and Llama's own, one that fills no tile, and columns that fill no step of 256.
SHAPES = [(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (100, 320), (64, 64)]


def quantized(rows: int, columns: int):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    weight = torch.randn(rows, columns, dtype=torch.bfloat16) * 0.02
    return bitsandbytes.nn.Params4bit(
        weight, requires_grad=False, quant_type="nf4", compress_statistics=True, blocksize=64
    ).to("cuda")


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_the_product_is_the_formulas(rows, columns):
    weight = nf4_linear.covered_weight(quantized(rows, columns))
    (product,) = nf4_linear.launches([weight], most_rows=nf4_linear.MOST_ROWS)
    exact = nf4.dequantize_reference(weight).double()
    for count in (1, 2, 3, 8, 17, 32):
        x = torch.randn(count, 1, columns, device="cuda", dtype=torch.bfloat16)
        torch.full((count, rows), float("nan"), dtype=torch.bfloat16, device="cuda")  # what its output may lie on
        said = product(x)
        wanted = x.double() @ exact.T
        assert said.shape == wanted.shape
        assert float((said.double() - wanted).norm() / wanted.norm()) < 5e-3
        assert torch.equal(product(x), said), "the same inputs give the same bits"


def test_weights_share_a_workspace_and_leave_it_clean():
    weights = [nf4_linear.covered_weight(quantized(rows, 1024)) for rows in (256, 4096, 64)]
    products = nf4_linear.launches(weights, most_rows=8)
    x = torch.randn(8, 1024, device="cuda", dtype=torch.bfloat16)
    first = [product(x) for product in products]
    assert all(torch.equal(product(x), before) for product, before in zip(products, first, strict=True))
