"""The 8-bit AdamW kernel against bitsandbytes' optimizer, on a GPU."""

import pytest

torch = pytest.importorskip("torch")

from bench.qlora.adamw8 import multi_tensor_adamw8bit  # noqa: E402 - after the skip

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), pytest.mark.usefixtures("_cuda")]
SHAPES = [(16, 4096), (4096, 16), (33, 129), (1024, 16), (64, 64)]
RATE, DECAY = 1e-3, 0.1


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
        return multi_tensor_adamw8bit(modules, {"params": parameters, "lr": RATE, "weight_decay": DECAY})

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


def test_a_gradient_that_is_not_finite_leaves_its_weight(modules) -> None:
    parameter = torch.nn.Parameter(torch.randn(64, 129, device="cuda"))
    before, parameter.grad = parameter.detach().clone(), torch.ones_like(parameter)
    parameter.grad[0, 7], parameter.grad[63, 128] = float("nan"), float("inf")
    multi_tensor_adamw8bit(modules, {"params": [parameter], "lr": RATE, "weight_decay": DECAY}).step()
    assert (parameter == before).nonzero().tolist() == [[0, 7], [63, 128]]
    assert torch.isfinite(parameter).all()


def test_two_runs_give_the_same_bits(modules) -> None:
    runs = []
    for _ in range(2):
        parameters = make_parameters()
        trained(
            lambda each: multi_tensor_adamw8bit(modules, {"params": each, "lr": RATE, "weight_decay": 0.0}),
            range(4),
            parameters,
        )
        runs.append(parameters)
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))
