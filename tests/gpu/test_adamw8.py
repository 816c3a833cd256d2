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
            adamw8.update_reference(*each, book, update)
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
        return multi_tensor_adamw8bit(modules, [{"params": parameters}], lr=RATE, weight_decay=DECAY)

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
            lambda each: multi_tensor_adamw8bit(modules, [{"params": each}], lr=RATE, weight_decay=0.0),
            range(4),
            parameters,
        )
        runs.append(parameters)
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))
