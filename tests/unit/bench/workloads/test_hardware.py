"""Products and copies on this machine's CPU; unsupported types on fakes of torch."""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from bench.records.result import Steps
from bench.workloads import hardware, training
from bench.workloads.hardware import Unsupported
from tests.support.faults import raising
from tests.support.recorded_result import InMemoryRecord


@pytest.mark.parametrize(
    ("dtype", "capability", "named"),
    [("bf16", (7, 0), ("7.0", "bf16", "8.0")), ("int8", (7, 0), ("7.0", "int8", "7.5")), ("int8", None, ("GPU",))],
)
def test_a_type_without_hardware_products_is_unsupported(dtype, capability, named):
    cuda = SimpleNamespace(get_device_capability=lambda _device: capability)
    modules = SimpleNamespace(torch=SimpleNamespace(cuda=cuda, no_grad=contextlib.nullcontext))
    session = SimpleNamespace(modules=modules, placement=SimpleNamespace(is_cuda=capability is not None, device=None))
    with pytest.raises(Unsupported) as caught:
        hardware.matmul_tflops(session, dtype, 256, budget_sec=0.1)
    assert all(word in str(caught.value) for word in named)


@pytest.fixture(scope="module")
def on_cpu() -> Any:
    torch = pytest.importorskip("torch")
    placement = SimpleNamespace(is_cuda=False, device=torch.device("cpu"), compute_dtype=torch.float32)
    return SimpleNamespace(modules=SimpleNamespace(torch=torch), placement=placement)


def test_operands_rotate_are_random_and_exceed_the_requested_bytes(on_cpu):
    torch = on_cpu.modules.torch
    call = hardware._product(on_cpu, "fp32", 32, operand_bytes=5 * 2 * 4 * 32 * 32)
    results = [call() for _ in range(6)]
    assert torch.equal(results[0], results[5])
    assert all(not torch.equal(results[0], other) for other in results[1:5])
    assert all(result.std() > 1 for result in results)


def test_a_sample_has_enough_calls_for_the_clock_and_slow_calls_have_the_fewest_samples(on_cpu, monkeypatch):
    call_counts: list[int] = []

    def timer(_session: object, _call: object, calls: int) -> float:
        call_counts.append(calls)
        return calls * 1e-4

    monkeypatch.setattr(hardware, "_timed_sec", timer)
    samples = hardware.sample_sec(on_cpu, lambda: None, budget_sec=0.02)
    assert call_counts == [1, 3] + [20] * 10
    assert samples == pytest.approx([1e-4] * 10)
    monkeypatch.setattr(hardware, "_timed_sec", lambda _session, _call, calls: calls * 3.0)
    assert hardware.sample_sec(on_cpu, lambda: None, budget_sec=0.02) == [3.0] * hardware.MIN_SAMPLES


def make_kept_record(trial: Any = None) -> Any:
    record: Any = InMemoryRecord(trial, gpu_name=None)
    record.steps = Steps(step_time_sec=[0.5, 0.25, 1.0], tokens=[100, 100, 100])
    return record


def test_mfu_is_unknown_without_memory_for_a_product_and_other_errors_propagate(on_cpu, monkeypatch):
    fault = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(hardware, "matmul_tflops", raising(fault))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        training._add_ceilings(make_kept_record(), on_cpu, {})
    monkeypatch.setattr(hardware, "matmul_tflops", raising(MemoryError()))
    record = make_kept_record()
    training._add_ceilings(record, on_cpu, {})
    (product,), (share,) = record.find("matmul_tflops"), record.find("mfu_percent")
    assert (product["value"], share["value"]) == (None, None)
    assert "memory" in product["note"]


def test_mfu_is_the_tokens_flop_over_the_product_measured_in_the_same_run(on_cpu, monkeypatch, make_trial):
    # A model whose linear layers and head hold 7 x 8 x 8 + 8 x 32 weights, with a tiny adapter.
    config = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config |= {"vocab_size": 32, "max_position_embeddings": 16, "model_type": "llama"}
    trial = make_trial(max_seq_len=16, lora_rank=1, lora_targets=("q_proj",))
    monkeypatch.setattr(hardware, "sample_sec", lambda *_: [1e-3])
    record = make_kept_record(trial)
    training._add_ceilings(record, on_cpu, config)
    (product,), (share,) = record.find("matmul_tflops"), record.find("mfu_percent")
    ceiling = product["value"]
    assert ceiling * 1e12 == pytest.approx(2 * 512**3 / 1e-3)
    assert (product["dtype"], product["size"], product["share_percent"]) == ("fp32", 512, None)
    flop = 4 * (7 * 64 + 256) + 6 * 16 + 3 * (4 * 8 * 16)
    assert share["flop_per_token"] == flop
    assert share["value"] == pytest.approx(
        100 * flop * 200 / (ceiling * 1e12)
    )  # 100 tokens in the median step of 0.5 s
