"""Captured steps are bit-identical to uncaptured ones in every layout, and offloaded steps to those on the GPU only.

python -m pytest -c /dev/null --rootdir . --import-mode=importlib -s tests/gpu/test_cuda_graph.py
"""

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench import torch_stack  # noqa: E402 - after the skip
from bench.data.collate import Batch, Unpacked  # noqa: E402
from bench.data.packing import Row  # noqa: E402
from bench.kernels import attention  # noqa: E402
from bench.qlora import recipes  # noqa: E402
from bench.qlora.recipes import layer  # noqa: E402
from bench.qlora.step import choose_placement, load_base  # noqa: E402
from bench.records import Trial  # noqa: E402
from bench.records.validation import ALL_LINEAR  # noqa: E402
from bench.workloads.finetune.evaluate import evaluation_mode  # noqa: E402
from bench.workloads.finetune.steps import GlobalStep, Gradients, StepRow  # noqa: E402
from bench.workloads.ranks.process import RankGroup  # noqa: E402
from tests.support.gpu import on_gpu  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), on_gpu]
VOCABULARY = 512
STEPS = 6


@pytest.fixture(scope="module")
def modules() -> torch_stack.Stack:
    return torch_stack.load()


@pytest.fixture(scope="module")
def model(modules: torch_stack.Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    config = modules.transformers.AutoConfig.for_model(
        "mistral", hidden_size=512, intermediate_size=1536, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=2, head_dim=64, vocab_size=VOCABULARY, max_position_embeddings=4096, sliding_window=None,
    )  # fmt: skip
    torch.manual_seed(1)
    modules.transformers.AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(folder)
    return folder


def build(modules: torch_stack.Stack, model: Path, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "name": "captured", "reason": "a test", "suite": "test", "profile": "tiny", "model": str(model), "data": "none",
        "recipe": "fast", "max_seq_len": 128, "micro_batch_size": 4, "optimizer": "adamw_torch", "warmup_steps": 0,
        "measured_steps": 1, "gradient_checkpointing": False,
    }  # fmt: skip
    trial = Trial(**(fields | changes))
    placement = choose_placement(modules)
    torch.manual_seed(2)
    step = recipes.build("fast", modules, trial, placement, load_base(modules, trial, placement))
    assert step.recipe == "fast", step.recipe
    return step


def padded(number: int, length: int = 128) -> Batch:
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(2, VOCABULARY, (4, length), generator=generator)
    return Batch(input_ids=ids, labels=ids.clone(), samples=4, tokens=4 * length, useful_tokens=4 * length)


def packed(number: int, longest: int = 128, edges: int = 0) -> Batch:
    """Make a batch of varying samples; 40 samples exceed the first capacity of a graph."""
    generator = torch.Generator().manual_seed(number)
    lengths = [10] * 40 if number == 3 else [longest - number, 7, 3 * number + 1, longest // 2, 1]
    ids = torch.randint(2, VOCABULARY, (sum(lengths),), generator=generator).tolist()
    tensors, (samples, tokens, useful) = Unpacked(longest, 4 * longest, 0, edges)(
        [Row(ids=ids, lengths=tuple(lengths))]
    )
    return Batch(**tensors, samples=samples, tokens=tokens, useful_tokens=useful)


def run(step: Any, batches: list[Batch], accumulation: int = 1, *, captures: bool) -> tuple[list[float], Any]:
    """Return (losses, all trained weights) after steps of `accumulation` micro-batches."""
    step.may_capture = captures
    torch.manual_seed(3)
    parts = (batches[first : first + accumulation] for first in range(0, len(batches), accumulation))
    losses = [float(step(iter(part), accumulation)) for part in parts]
    trained = [parameter.detach().flatten() for parameter in step.model.parameters() if parameter.requires_grad]
    return losses, torch.cat(trained)


@pytest.mark.parametrize("kind", ["padded", "packed", "long samples"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_checkpointing": True, "lora_targets": ALL_LINEAR},
        {"matmul": "int8", "held_layers": 1, "lora_targets": ALL_LINEAR, "gradient_checkpointing": True,
         "checkpoint_every": 2},
        {"lora_dropout": 0.0, "optimizer": "paged_adamw_8bit"},
        {"gradient_checkpointing": True, "offload_checkpoints": True},
        {"gradient_checkpointing": True, "offload_checkpoints": True, "matmul": "int8"},
    ],
    ids=["plain", "recomputed", "int8", "no dropout, 8-bit optimizer", "offloaded", "offloaded int8"],
)  # fmt: skip
@pytest.mark.parametrize("accumulation", [1, 2])
def test_captured_steps_have_the_same_bits(modules, model, kind, changes, accumulation, monkeypatch):
    if kind == "long samples":  # FlashAttention's operators
        monkeypatch.setattr(attention, "MAX_SHORT_TOKENS", 1)
    make = padded if kind == "padded" else packed
    layout = "pad" if kind == "padded" else "varlen"
    batches = [make(number) for number in range(STEPS)]
    expected = run(build(modules, model, layout=layout, **changes), batches, accumulation, captures=False)
    step = build(modules, model, layout=layout, **changes)
    actual = run(step, batches, accumulation, captures=True)
    assert step.model.graph is not None
    assert actual[0] == expected[0]
    assert torch.equal(actual[1], expected[1])
    assert set(step.clock.read()) == {"data", "forward", "backward", "optimizer"}
    assert all(seconds > 0 for seconds in step.clock.read().values())


def test_an_evaluation_frees_the_graph_and_later_steps_capture_again(modules, model):
    batches = [padded(number) for number in range(STEPS)]

    def evaluated(*, captures: bool) -> tuple[Any, Any, Any]:
        step = build(modules, model)
        before = run(step, batches[:3], captures=captures)
        step.model.eval()
        assert step.model.graph is None
        torch.cuda.empty_cache()
        mean = step.model.token_losses(**step.inputs(padded(9, 96))).mean().item()
        step.model.train()
        after = run(step, batches[3:], captures=captures)
        assert (step.model.graph is not None) is captures
        return before[0], mean, after

    actual, expected = evaluated(captures=True), evaluated(captures=False)
    assert actual[:2] == expected[:2]
    assert actual[2][0] == expected[2][0]
    assert torch.equal(actual[2][1], expected[2][1])


@pytest.mark.parametrize("products", ["bf16", "int8"])
def test_steps_with_embeddings_and_head_in_the_hosts_memory_have_the_same_bits(modules, model, products):
    options = {"gradient_checkpointing": True, "matmul": products}

    def trained(**changes: Any) -> tuple[Any, ...]:
        step = build(modules, model, **options, **changes)
        losses, weights = run(step, [padded(number) for number in range(STEPS)], captures=False)
        with evaluation_mode(torch, step.model):
            held_out = step.model.token_losses(**step.inputs(padded(9)))
            with step.autocast(), step.on_device():
                ids = torch.arange(2, 9, device="cuda")[None]
                answer = step.model.peft_model.generate(input_ids=ids, max_new_tokens=5, do_sample=False)
        return step, losses, weights, held_out, answer

    (_, *expected), (step, *actual) = trained(), trained(offload_checkpoints=True)
    base = step.model.peft_model.get_base_model()
    for weight in (base.model.embed_tokens.weight, base.lm_head.weight):
        assert weight.device.type == "cpu"
        assert weight.is_pinned()
    assert actual[0] == expected[0]
    assert all(torch.equal(tensor, other) for tensor, other in zip(actual[1:], expected[1:], strict=True))


@pytest.mark.parametrize("changes", [{}, {"gradient_checkpointing": True, "offload_checkpoints": True}])
def test_out_of_memory_during_a_capture_changes_no_bit(modules, model, monkeypatch, changes):
    batches = [padded(number) for number in range(4)]
    expected = run(build(modules, model, **changes), batches, captures=False)
    attend_backward, calls = layer.attend_backward, []

    def full(*arguments: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            calls.append(1)
            if len(calls) == 2:
                raise torch.OutOfMemoryError("full")
        return attend_backward(*arguments)

    monkeypatch.setattr(layer, "attend_backward", full)
    step = build(modules, model, **changes)
    actual = run(step, batches, captures=True)
    assert len(calls) == 2
    assert step.no_capture_reason == "not enough memory"
    assert actual[0] == expected[0]
    assert torch.equal(actual[1], expected[1])


def test_a_graph_frees_its_memory(modules, model):
    step = build(modules, model)
    run(step, [padded(0)], captures=False)
    torch.cuda.empty_cache()
    without = torch.cuda.memory_reserved()
    run(step, [padded(number) for number in range(4)], captures=True)
    held = torch.cuda.memory_reserved()
    step.model.graph = None
    torch.cuda.empty_cache()
    assert held > torch.cuda.memory_reserved()
    assert torch.cuda.memory_reserved() <= without + (96 << 20)  # workspaces of libraries for the capturing stream


class EqualRanks(RankGroup):
    """Two ranks with the same gradients: sums on a stream of its own, ordered as NCCL orders its stream."""

    def __init__(self) -> None:
        super().__init__(torch, 0, 2)
        self.stream, self.ends = torch.cuda.Stream(), []

    def all_reduce_async(self, tensor: Any) -> Any:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            tensor.mul_(2)
            self.ends.append(torch.cuda.Event(enable_timing=True))
            self.ends[-1].record()
        return self

    def wait(self) -> None:
        torch.cuda.current_stream().wait_stream(self.stream)


def exchanged(step: Any, *, captures: bool) -> tuple[list[Any], Any, EqualRanks]:
    """Return each step's sums, the weights after all steps, and the group of the ranks."""
    step.may_capture, step.has_gradient_hooks = captures, True
    group = EqualRanks()
    trained = [parameter for parameter in step.model.parameters() if parameter.requires_grad]
    gradients = Gradients(torch, trained, group, wire_dtype="bf16", bucket_bytes=1 << 14)
    assert len(gradients.buckets) > 3
    whole = GlobalStep(torch, step, gradients, seed=5, max_norm=1.0)
    sums = []
    for number in range(STEPS):
        group.ends.clear()
        rows = [StepRow(index=index, batch=padded(2 * number + index), targets=512) for index in range(2)]
        whole.forward_backward(number, rows, 1024)
        sums.append(torch.cat([bucket.flat for bucket in gradients.buckets]))
        whole.update(1.0)
        sums.append(whole.scalars.clone())
    torch.cuda.synchronize()
    assert all((bucket.computed is not None) is captures for bucket in gradients.buckets)
    return sums, torch.cat([parameter.detach().flatten() for parameter in trained]), group


@pytest.mark.parametrize(
    "changes", [{}, {"matmul": "int8"}, {"gradient_checkpointing": True, "offload_checkpoints": True}]
)
def test_ranks_exchange_the_same_gradients_while_a_captured_backward_pass_runs(modules, model, monkeypatch, changes):
    attend_backward = layer.attend_backward

    def slow(*arguments: Any) -> Any:
        torch.cuda._sleep(20_000_000)  # 10 ms a layer: a bucket sent too early would lack its gradients
        return attend_backward(*arguments)

    monkeypatch.setattr(layer, "attend_backward", slow)
    expected, weights, _ = exchanged(build(modules, model, **changes), captures=False)
    step = build(modules, model, **changes)
    actual, captured_weights, group = exchanged(step, captures=True)
    assert step.capture_status == "yes"
    assert all(torch.equal(sums, plain) for sums, plain in zip(actual, expected, strict=True))
    assert torch.equal(captured_weights, weights)
    first, last = group.ends[0], group.ends[-1]
    assert first.elapsed_time(last) > 5.0  # milliseconds: the first bucket left layers before the end of the graph


def test_after_two_rows_no_row_compiles_a_kernel_or_captures_another_graph(modules, model):
    def compiled() -> int:
        kernels = [
            each
            for name in sys.modules
            if name.startswith("bench.kernels")
            for each in vars(sys.modules[name]).values()
        ]
        return sum(len(cache[0]) for each in kernels for cache in getattr(each, "device_caches", {}).values())

    def evaluate(number: int) -> None:
        with evaluation_mode(torch, step.model):
            step.model.token_losses(**step.inputs(packed(number, edges=64)))

    step = build(modules, model, layout="varlen", matmul="int8")
    evaluate(0)
    run(step, [packed(number, edges=64) for number in (0, 1)], captures=True)
    before, graph = compiled(), step.model.graph
    run(step, [packed(number, edges=64) for number in range(2, STEPS)], captures=True)
    assert step.model.graph is graph
    run(step, [packed(number, edges=64) for number in range(STEPS)], captures=False)
    evaluate(3)
    assert compiled() == before > 0
