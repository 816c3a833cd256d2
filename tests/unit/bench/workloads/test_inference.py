"""Inference: which batches, which path ends where memory does, and that both paths write the same tokens."""

from types import SimpleNamespace
from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.torch_stack import Stack
from bench.workloads import inference
from bench.workloads.decoding import Generated
from bench.workloads.inference import Generation, attend_to_all, batch_sizes, check_length
from tests.support.faults import OutOfMemoryError
from tests.support.recorded_result import KeptRecord


class Tokens:
    """Tokens that agree with all others in three places of four."""

    def __eq__(self, _other: object) -> Any:
        return SimpleNamespace(float=lambda: SimpleNamespace(mean=lambda: 0.75))

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def generation(make_trial, monkeypatch) -> Any:
    """A loaded model whose fast path runs out of memory from batch `breaks_at` on; every answer takes 1 s + 2 s."""

    def make(*, is_cuda: bool = True, breaks_at: int = 1000, error: Exception | None = None) -> Generation:
        def path(name: str) -> Any:
            def build(_modules: Any, _model: Any, _placement: Any, prompts: Any, new_tokens: int, **_: Any) -> Any:
                def answer() -> Generated:
                    if name == "fast" and len(prompts) >= breaks_at:
                        raise error or OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
                    decode = 2.0 if new_tokens > 1 else None
                    return Generated(tokens=Tokens(), time_to_first_token_sec=1.0, decode_sec=decode)

                return SimpleNamespace(answer=answer)

            build.name = name  # type: ignore[attr-defined]
            return build

        monkeypatch.setattr(inference, "DefaultPath", path("default"))
        monkeypatch.setattr(inference, "FastPath", path("fast"))
        monkeypatch.setattr(inference, "bytes_read", lambda _model: 3_000_000_000)
        monkeypatch.setattr(inference, "add_adapters", lambda *_: None)
        cuda = SimpleNamespace(
            reset_peak_memory_stats=lambda: None, max_memory_allocated=lambda: 77, empty_cache=lambda: None
        )
        session: Any = SimpleNamespace(
            modules=SimpleNamespace(torch=SimpleNamespace(cuda=cuda)), placement=SimpleNamespace(is_cuda=is_cuda)
        )
        record: Any = KeptRecord(make_trial(kind="inference", max_seq_len=100))
        return Generation(record=record, session=session, model=None, new_tokens=5, repeats=3)

    return make


STOPS: Any = SimpleNamespace(check=lambda: None)
PROMPTS = list(range(8))


@pytest.mark.parametrize(("largest", "batches"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (32, [1, 2, 4, 8, 16, 32])])
def test_batches_double_up_to_the_largest_asked_for(largest, batches):
    assert batch_sizes(largest) == batches


def test_positions_too_few_and_a_window_too_narrow_for_prompt_and_answer_are_refused(make_trial):
    check_length(make_trial(max_seq_len=56), 8, 64)
    with pytest.raises(InputError, match=r"new_tokens: 9 after a prompt of 56 .* more than the 64 positions"):
        check_length(make_trial(max_seq_len=56), 9, 64)
    config = SimpleNamespace(sliding_window=64)
    attend_to_all(make_trial(), config, 64)
    assert config.sliding_window is None
    with pytest.raises(InputError, match="longer than the sliding window of 64"):
        attend_to_all(make_trial(), SimpleNamespace(sliding_window=64), 65)


def test_rates_count_all_sequences_and_the_first_token_is_the_prefills(generation):
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
    (entry,) = bench.record.named("decode_tokens_per_sec", path="fast")
    assert entry["interval"].n == 3
    assert (entry["batch"], entry["precision"], entry["prompt_tokens"], entry["new_tokens"]) == (4, "nf4", 100, 5)
    assert bench.record.named("agreeing_tokens_percent", batch=4)[0]["value"] == 75.0


def test_a_path_that_runs_out_of_memory_ends_there_and_the_other_goes_on(generation):
    bench = generation(breaks_at=2)
    assert bench.measure_all(PROMPTS, [1, 2, 4], STOPS) == {"default": 4, "fast": 1}
    values = {batch: bench.record.named("decode_tokens_per_sec", path="fast", batch=batch) for batch in (1, 2, 4)}
    assert [entry["value"] for (entry,) in values.values()] == [2.0, None, None]
    assert values[2][0]["note"] == "out of memory: CUDA out of memory. Tried to allocate 2 GiB"
    assert values[4][0]["note"] == "not tried: batch 1 was the last that fitted"
    assert len(bench.record.named("decode_tokens_per_sec", path="default")) == 3


def test_the_fast_path_is_measured_again_with_adapters(generation):
    bench = generation(breaks_at=4)
    assert bench.measure_adapter(PROMPTS, [1, 2, 4], STOPS) == {"adapter": 2}
    values = [entry["value"] for entry in bench.record.named("decode_tokens_per_sec", path="adapter")]
    assert values == [2.0, 4.0, None]
    assert generation(is_cuda=False).measure_adapter(PROMPTS, [1], STOPS) == {}


def test_a_step_that_is_not_the_fused_one_says_why(generation, monkeypatch):
    bench = generation()
    answer = inference.FastPath(None, None, None, PROMPTS[:1], 5).answer
    path = SimpleNamespace(answer=answer, not_fused="a base that is not NF4, or has biases")
    monkeypatch.setattr(inference, "FastPath", lambda *_, **__: path)
    bench.measure_adapter(PROMPTS, [1], STOPS)
    (entry,) = bench.record.named("decode_tokens_per_sec", path="adapter")
    assert entry["note"] == "not the step of five kernels a layer: a base that is not NF4, or has biases"


def test_memory_that_runs_out_during_a_capture_is_found_behind_its_error_and_any_other_is_the_trials_end(generation):
    broken = RuntimeError("operation failed due to a previous error during capture")
    broken.__context__ = OutOfMemoryError("CUDA out of memory")
    bench = generation(breaks_at=1, error=broken)
    assert bench.measure_all(PROMPTS, [1], STOPS) == {"default": 1, "fast": 0}
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        generation(breaks_at=1, error=RuntimeError("an illegal memory access")).measure_all(PROMPTS, [1], STOPS)


def test_without_a_gpu_the_fast_path_is_left_out_and_says_so(generation):
    bench = generation(is_cuda=False)
    assert bench.measure_all(PROMPTS, [1, 2], STOPS) == {"default": 2}
    skipped = bench.record.named("decode_tokens_per_sec", path="fast")
    assert [(entry["batch"], entry["value"]) for entry in skipped] == [(1, None), (2, None)]
    assert all("no CUDA device" in entry["note"] for entry in skipped)


def test_a_decoder_is_told_positions_in_the_words_of_its_version():
    def older(*, position_ids: Any, cache_position: Any) -> None: ...

    def newer(*, position_ids: Any, **kwargs: Any) -> None: ...

    nothing: Any = SimpleNamespace()
    stack = Stack(torch=nothing, transformers=nothing, peft=nothing, bitsandbytes=nothing)
    positions = SimpleNamespace(unsqueeze=lambda _: "row")
    told = stack.position_arguments(SimpleNamespace(forward=older), positions)
    assert told == {"position_ids": "row", "cache_position": positions}
    assert stack.position_arguments(SimpleNamespace(forward=newer), positions) == {"position_ids": "row"}
