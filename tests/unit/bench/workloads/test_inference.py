"""Inference: batch sizes, paths that run out of memory, and the agreement of both paths."""

from types import SimpleNamespace
from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.torch_stack import Stack
from bench.workloads import inference
from bench.workloads.decoding import Generated
from bench.workloads.inference import Generation, batch_sizes, check_length, disable_sliding_window
from tests.model_shapes import MISTRAL_7B as CONFIG
from tests.support.faults import OutOfMemoryError
from tests.support.recorded_result import InMemoryRecord


class Tokens:
    """Tokens of which three quarters equal any others."""

    def __eq__(self, _other: object) -> Any:
        return SimpleNamespace(float=lambda: SimpleNamespace(mean=lambda: 0.75))

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def generation(make_trial, monkeypatch) -> Any:
    """Return a factory of models whose fast path runs out of memory from batch `breaks_at` on; answers take 1 + 2 s."""

    def make(*, is_cuda: bool = True, breaks_at: int = 1000, error: Exception | None = None) -> Generation:
        def path(name: str) -> Any:
            def build(_modules: Any, _model: Any, _placement: Any, prompts: Any, new_tokens: int, **_: Any) -> Any:
                def generate() -> Generated:
                    if name == "fast" and len(prompts) >= breaks_at:
                        raise error or OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
                    decode = 2.0 if new_tokens > 1 else None
                    return Generated(tokens=Tokens(), time_to_first_token_sec=1.0, decode_sec=decode)

                return SimpleNamespace(generate=generate)

            build.name = name  # type: ignore[attr-defined]
            return build

        monkeypatch.setattr(inference, "DefaultPath", path("default"))
        monkeypatch.setattr(inference, "FastPath", path("fast"))
        monkeypatch.setattr(inference, "weight_bytes_per_token", lambda _model: 3_000_000_000)
        monkeypatch.setattr(inference, "add_adapters", lambda *_: None)
        cuda = SimpleNamespace(
            reset_peak_memory_stats=lambda: None, max_memory_allocated=lambda: 77, empty_cache=lambda: None
        )
        session: Any = SimpleNamespace(
            modules=SimpleNamespace(torch=SimpleNamespace(cuda=cuda)), placement=SimpleNamespace(is_cuda=is_cuda)
        )
        record: Any = InMemoryRecord(make_trial(kind="inference", max_seq_len=100))
        return Generation(record=record, session=session, model=None, new_tokens=5, repeats=3)

    return make


STOPS: Any = SimpleNamespace(check=lambda: None)
PROMPTS = list(range(8))


@pytest.mark.parametrize(("largest", "batches"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (32, [1, 2, 4, 8, 16, 32])])
def test_batches_double_up_to_the_largest(largest, batches):
    assert batch_sizes(largest) == batches


def test_prompt_and_answer_beyond_the_positions_or_the_window_are_rejected(make_trial):
    check_length(make_trial(max_seq_len=56), 8, 64)
    with pytest.raises(InputError, match=r"^new_tokens: 9 .* 56 \(max_seq_len\) .* 64 positions"):
        check_length(make_trial(max_seq_len=56), 9, 64)
    config = SimpleNamespace(to_dict=lambda: CONFIG | {"sliding_window": 64})
    disable_sliding_window(make_trial(), config, 64)
    assert config.sliding_window is None
    with pytest.raises(InputError, match=r"^max_seq_len: .* 65 tokens .* window of 64"):
        disable_sliding_window(make_trial(), config, 65)
    unread = SimpleNamespace(to_dict=lambda: CONFIG | {"model_type": "llama", "sliding_window": 64})
    disable_sliding_window(make_trial(), unread, 65)


def test_rates_count_all_sequences_and_the_first_token_belongs_to_the_prefill(generation):
    bench = generation()
    assert bench.measure_all(PROMPTS, [4], STOPS) == {"default": 4, "fast": 4}
    for path in ("default", "fast"):
        values = {e["name"]: e["value"] for e in bench.record.added if e.get("path") == path}
        assert values == {
            "time_to_first_token_sec": 1.0,
            "prefill_tokens_per_sec": 400.0,
            "decode_time_per_token_sec": 0.5,
            "decode_tokens_per_sec": 8.0,
            "decode_read_gb_per_sec": 6.0,
            "peak_memory_bytes": 77,
        }
    (entry,) = bench.record.find("decode_tokens_per_sec", path="fast")
    assert entry["interval"].n == 3
    assert (entry["batch"], entry["precision"], entry["prompt_tokens"], entry["new_tokens"]) == (4, "nf4", 100, 5)
    assert bench.record.find("agreeing_tokens_percent", batch=4)[0]["value"] == 75.0


def test_a_path_that_runs_out_of_memory_ends_and_the_other_continues(generation):
    bench = generation(breaks_at=2)
    assert bench.measure_all(PROMPTS, [1, 2, 4], STOPS) == {"default": 4, "fast": 1}
    values = {batch: bench.record.find("decode_tokens_per_sec", path="fast", batch=batch) for batch in (1, 2, 4)}
    assert [entry["value"] for (entry,) in values.values()] == [2.0, None, None]
    assert "CUDA out of memory. Tried to allocate 2 GiB" in values[2][0]["note"]
    assert "batch 1 " in values[4][0]["note"]
    assert len(bench.record.find("decode_tokens_per_sec", path="default")) == 3


def test_the_fast_path_is_measured_again_with_adapters(generation):
    bench = generation(breaks_at=4)
    assert bench.measure_adapter(PROMPTS, [1, 2, 4], STOPS) == {"adapter": 2}
    values = [entry["value"] for entry in bench.record.find("decode_tokens_per_sec", path="adapter")]
    assert values == [2.0, 4.0, None]
    assert generation(is_cuda=False).measure_adapter(PROMPTS, [1], STOPS) == {}


def test_a_step_that_is_not_the_fused_one_gives_the_reason(generation, monkeypatch):
    bench = generation()
    generate = inference.FastPath(None, None, None, PROMPTS[:1], 5).generate
    path = SimpleNamespace(generate=generate, not_fused_reason="a base that is not NF4, or has biases")
    monkeypatch.setattr(inference, "FastPath", lambda *_, **__: path)
    bench.measure_adapter(PROMPTS, [1], STOPS)
    (entry,) = bench.record.find("decode_tokens_per_sec", path="adapter")
    assert entry["note"].endswith(": a base that is not NF4, or has biases")


def test_out_of_memory_during_a_capture_is_recognised_and_other_errors_propagate(generation):
    broken = RuntimeError("operation failed due to a previous error during capture")
    broken.__context__ = OutOfMemoryError("CUDA out of memory")
    bench = generation(breaks_at=1, error=broken)
    assert bench.measure_all(PROMPTS, [1], STOPS) == {"default": 1, "fast": 0}
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        generation(breaks_at=1, error=RuntimeError("an illegal memory access")).measure_all(PROMPTS, [1], STOPS)


def test_without_a_gpu_the_fast_path_is_skipped_with_a_note(generation):
    bench = generation(is_cuda=False)
    assert bench.measure_all(PROMPTS, [1, 2], STOPS) == {"default": 2}
    skipped = bench.record.find("decode_tokens_per_sec", path="fast")
    assert [(entry["batch"], entry["value"]) for entry in skipped] == [(1, None), (2, None)]
    assert all("no CUDA device" in entry["note"] for entry in skipped)


def test_a_decoder_gets_positions_in_the_keywords_of_its_version():
    def older(*, position_ids: Any, cache_position: Any) -> None: ...

    def newer(*, position_ids: Any, **kwargs: Any) -> None: ...

    nothing: Any = SimpleNamespace()
    stack = Stack(torch=nothing, transformers=nothing, peft=nothing, bitsandbytes=nothing)
    positions = SimpleNamespace(unsqueeze=lambda _: "row")
    arguments = stack.position_arguments(SimpleNamespace(forward=older), positions)
    assert arguments == {"position_ids": "row", "cache_position": positions}
    assert stack.position_arguments(SimpleNamespace(forward=newer), positions) == {"position_ids": "row"}
