"""The PyTorch reference of 8-bit AdamW against bitsandbytes' optimizer on a CPU.

tests/gpu/test_adamw8.py compares the Triton kernel with both.
"""

import pytest
import torch

from bench.kernels import adamw8
from bench.kernels.adamw8 import Codebook, Moments, Update

BETAS, EPS = (0.9, 0.999), 1e-8


def zero_moments(parameter: torch.Tensor) -> Moments:
    blocks = -(-parameter.numel() // adamw8.BLOCK)
    return Moments(
        codes_m=torch.zeros_like(parameter, dtype=torch.uint8),
        codes_v=torch.zeros_like(parameter, dtype=torch.uint8),
        max_m=torch.zeros(blocks),
        max_v=torch.zeros(blocks),
    )


def codebook(modules) -> Codebook:
    make = modules.bitsandbytes.functional.create_dynamic_map
    return Codebook.from_values(make(signed=True), make(signed=False))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(64, 64), (4096, 16), (33, 129)])
def test_updates_match_bitsandbytes(modules, shape, weight_decay) -> None:
    """Compare up to code rounding: on a CPU bitsandbytes sometimes uses a neighbour of the nearest code."""
    torch.manual_seed(3)
    ours, book = torch.randn(shape), codebook(modules)
    before, theirs = ours.clone(), torch.nn.Parameter(ours.clone())
    optimizer = modules.bitsandbytes.optim.AdamW8bit([theirs], lr=1e-2, weight_decay=weight_decay)
    moments = zero_moments(ours)
    for step in range(1, 6):
        gradient = torch.randn(shape)
        theirs.grad = gradient.clone()
        optimizer.step()
        update = Update(lr=1e-2, betas=BETAS, eps=EPS, weight_decay=weight_decay, step=step)
        adamw8.update_reference(ours, gradient, moments, book, update)
        state = optimizer.state[theirs]
        torch.testing.assert_close(moments.max_m, state["absmax1"], rtol=1e-2, atol=0.0)
        torch.testing.assert_close(moments.max_v, state["absmax2"], rtol=1e-2, atol=0.0)
        ours_m = values(moments.codes_m, moments.max_m, book.signed)
        assert close(ours_m, values(state["state1"], state["absmax1"], book.signed), 5e-3)
    assert close(ours - before, theirs.detach() - before, 2e-2)


def test_codes_are_the_nearest(modules) -> None:
    torch.manual_seed(5)
    gradient, book = torch.randn(1024) * 10.0 ** torch.randint(-5, 2, (1024,)), codebook(modules)
    moments = zero_moments(gradient)
    update = Update(lr=0.0, betas=BETAS, eps=EPS, weight_decay=0.0, step=1)
    adamw8.update_reference(torch.zeros(1024), gradient, moments, book, update)
    exact = (1.0 - BETAS[1]) * gradient**2 / moments.max_v.repeat_interleave(adamw8.BLOCK)
    nearest = (exact[:, None] - book.unsigned).abs().amin(1)
    torch.testing.assert_close((exact - book.unsigned[moments.codes_v.long()]).abs(), nearest, rtol=1e-3, atol=1e-8)


def values(codes: torch.Tensor, largest: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    flat = table[codes.flatten().long()]
    return flat * largest.repeat_interleave(adamw8.BLOCK)[: len(flat)]


def close(value: torch.Tensor, expected: torch.Tensor, limit: float) -> bool:
    return float((value - expected).norm() / expected.norm()) < limit


def test_a_gradient_that_is_not_finite_changes_nothing(modules) -> None:
    parameter = torch.randn(300)
    before, gradient, moments = parameter.clone(), torch.ones(300), zero_moments(parameter)
    gradient[7], gradient[299] = float("nan"), float("inf")
    update = Update(lr=1e-2, betas=BETAS, eps=EPS, weight_decay=0.1, step=1)
    adamw8.update_reference(parameter, gradient, moments, codebook(modules), update)
    assert (parameter == before).nonzero().flatten().tolist() == [7, 299]
    assert torch.isfinite(parameter).all()


def test_a_zero_gradient_leaves_zero_moments(modules) -> None:
    parameter, moments = torch.randn(512), zero_moments(torch.zeros(512))
    update = Update(lr=0.0, betas=BETAS, eps=EPS, weight_decay=0.0, step=1)
    book = codebook(modules)
    adamw8.update_reference(parameter, torch.zeros(512), moments, book, update)
    assert not moments.max_m.any()
    assert not book.signed[moments.codes_m.long()].any()
    assert not book.unsigned[moments.codes_v.long()].any()
