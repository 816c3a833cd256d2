"""The 8-bit AdamW kernel against its PyTorch reference and bitsandbytes' optimizer, on a GPU."""

import pytest

torch = pytest.importorskip("torch")

from bench.kernels import adamw8  # noqa: E402
from bench.kernels.adamw8 import Codebook, Moments, TensorTable, Update  # noqa: E402
from bench.qlora.adamw8 import multi_tensor_adamw8bit  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), pytest.mark.usefixtures("_cuda")]
SHAPES = [(16, 4096), (4096, 16), (33, 129), (1024, 16), (64, 64)]
RATE, DECAY = 1e-3, 0.1


def moments_of(parameter) -> Moments:
    blocks = -(-parameter.numel() // adamw8.BLOCK)
    return Moments(
        codes_m=torch.zeros_like(parameter, dtype=torch.uint8),
        codes_v=torch.zeros_like(parameter, dtype=torch.uint8),
        max_m=torch.zeros(blocks, device=parameter.device),
        max_v=torch.zeros(blocks, device=parameter.device),
    )


def update_reference(parameter, gradient, moments: Moments, codebook: Codebook, update: Update) -> None:
    """Update one tensor in place, in plain PyTorch."""
    (beta1, beta2), numel = update.betas, parameter.numel()
    padded = len(moments.max_m) * adamw8.BLOCK

    def blocks(tensor):
        return torch.nn.functional.pad(tensor.reshape(-1), (0, padded - numel)).view(-1, adamw8.BLOCK)

    g, p = blocks(gradient), blocks(parameter)
    is_finite = torch.isfinite(g)
    g = torch.where(is_finite, g, 0.0)
    m = codebook.signed[blocks(moments.codes_m).long()] * moments.max_m[:, None] * beta1 + (1.0 - beta1) * g
    v = codebook.unsigned[blocks(moments.codes_v).long()] * moments.max_v[:, None] * beta2 + (1.0 - beta2) * g * g
    m, v = torch.where(is_finite, m, 0.0), torch.where(is_finite, v, 0.0)
    is_real = blocks(torch.ones_like(parameter)) > 0
    m, v = torch.where(is_real, m, 0.0), torch.where(is_real, v, 0.0)
    updated = p - update.step_size * (m / (v.sqrt() + update.correction * update.eps))
    updated = updated * (1.0 - update.lr * update.weight_decay)
    parameter.copy_(torch.where(is_finite, updated, p).reshape(-1)[:numel].view_as(parameter))
    moments.max_m.copy_(m.abs().amax(1))
    moments.max_v.copy_(v.amax(1))
    codes_m = torch.bucketize(m * _inverse(moments.max_m)[:, None], codebook.signed_midpoints)
    codes_m -= ((m < 0) & (codebook.signed[codes_m] >= 0)).to(codes_m.dtype)  # keep the sign
    codes_v = torch.bucketize(v * _inverse(moments.max_v)[:, None], codebook.unsigned_midpoints)
    for target, codes in ((moments.codes_m, codes_m), (moments.codes_v, codes_v)):
        target.copy_(codes.reshape(-1)[:numel].view_as(target).to(torch.uint8))


def _inverse(magnitudes):
    return torch.where(magnitudes > 0, 1.0 / magnitudes, 0.0)


def test_the_kernel_matches_its_reference(modules) -> None:
    make = modules.bitsandbytes.functional.create_dynamic_map
    book = Codebook.from_values(make(signed=True).cuda(), make(signed=False).cuda())
    torch.manual_seed(1)
    parameters = [torch.randn(shape, device="cuda") for shape in SHAPES]
    expected = [parameter.clone() for parameter in parameters]
    moments, references = [list(map(moments_of, parameters)) for _ in range(2)]
    for step in range(1, 4):
        gradients = [torch.randn_like(parameter) for parameter in parameters]
        gradients[2][0, 0], gradients[2][32, 128] = float("nan"), float("inf")
        update = Update(lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=DECAY, step=step)
        adamw8.update_(TensorTable(list(zip(parameters, gradients, moments, strict=True))), book, update)
        for each in zip(expected, gradients, references, strict=True):
            update_reference(*each, book, update)
    for parameter, wanted, state, reference in zip(parameters, expected, moments, references, strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(state.max_m, reference.max_m, rtol=1e-5, atol=0.0)
        assert float((state.codes_m != reference.codes_m).float().mean()) < 1e-3
        assert float((state.codes_v != reference.codes_v).float().mean()) < 1e-3


def trained(optimizer_of, steps: range, parameters):
    torch.manual_seed(2)
    gradients = [[torch.randn_like(parameter) for parameter in parameters] for _ in range(steps.stop)]
    optimizer = optimizer_of(parameters)
    for number in steps:
        for parameter, gradient in zip(parameters, gradients[number], strict=True):
            parameter.grad = gradient
        optimizer.step()
    return optimizer


def make_parameters():
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, device="cuda")) for shape in (*SHAPES, (8, 16))]


def test_the_optimizer_follows_bitsandbytes_and_reads_its_state(modules) -> None:
    def ours(parameters):
        return multi_tensor_adamw8bit(modules, [{"params": parameters, "lr": RATE, "weight_decay": DECAY}])

    def theirs(parameters):
        return modules.bitsandbytes.optim.AdamW8bit(parameters, lr=RATE, weight_decay=DECAY)

    begun, expected = make_parameters(), make_parameters()
    trained(ours, range(5), begun)
    state = trained(theirs, range(5), expected)
    for parameter, wanted, start in zip(begun, expected, make_parameters(), strict=True):
        moved = float((wanted - start).detach().norm())
        assert float((parameter - wanted).detach().norm()) < 2e-3 * moved

    def resumed(parameters):
        optimizer = ours(parameters)
        optimizer.load_state_dict(state.state_dict())
        return optimizer

    copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in expected]
    trained(resumed, range(5, 7), copies)
    trained(lambda _: state, range(5, 7), expected)
    for parameter, wanted in zip(copies, expected, strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-4, atol=1e-5)


def test_two_runs_give_the_same_bits(modules) -> None:
    runs = []
    for _ in range(2):
        parameters = make_parameters()
        trained(
            lambda each: multi_tensor_adamw8bit(modules, [{"params": each, "lr": RATE, "weight_decay": 0.0}]),
            range(4),
            parameters,
        )
        runs.append(parameters)
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))
