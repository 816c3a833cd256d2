"""Inference: batch sizes, rates, and paths that run out of memory."""

from types import SimpleNamespace
from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.workloads import inference
from bench.workloads.inference import Generation, batch_sizes, check_length
from tests.support.faults import OutOfMemoryError
from tests.support.recorded_result import InMemoryRecord


@pytest.fixture
def generation(make_trial, monkeypatch) -> Any:
    """Return a factory of models that run out of memory from batch `breaks_at` on; answers take 1 + 2 s."""

    def make(*, breaks_at: int = 1000, error: Exception | None = None) -> Generation:
        def time_answers(_session: Any, _model: Any, prompts: Any, _new_tokens: int) -> tuple[float, float]:
            if len(prompts) >= breaks_at:
                raise error or OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
            return 1.0, 2.0

        monkeypatch.setattr(inference, "time_answers", time_answers)
        cuda = SimpleNamespace(
            reset_peak_memory_stats=lambda: None, max_memory_allocated=lambda: 77, empty_cache=lambda: None
        )
        session: Any = SimpleNamespace(
            modules=SimpleNamespace(torch=SimpleNamespace(cuda=cuda)), placement=SimpleNamespace(is_cuda=True)
        )
        record: Any = InMemoryRecord(make_trial(kind="inference", max_seq_len=100))
        return Generation(record=record, session=session, model=None, new_tokens=5, repeats=3)

    return make


STOPS: Any = SimpleNamespace(check=lambda: None)
PROMPTS = list(range(8))


@pytest.mark.parametrize(("largest", "batches"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (32, [1, 2, 4, 8, 16, 32])])
def test_batches_double_up_to_the_largest(largest, batches):
    assert batch_sizes(largest) == batches


def test_prompt_and_answer_beyond_the_positions_are_rejected(make_trial):
    check_length(make_trial(max_seq_len=56), 8, 64)
    with pytest.raises(InputError, match=r"^new_tokens: 9 .* 56 \(max_seq_len\) .* 64 positions"):
        check_length(make_trial(max_seq_len=56), 9, 64)


def test_rates_count_all_sequences_and_the_first_token_belongs_to_the_prefill(generation):
    bench = generation()
    assert bench.measure_path("base", PROMPTS, [4], STOPS) == 4
    assert {e["name"]: e["value"] for e in bench.record.added if e["path"] == "base"} == {
        "time_to_first_token_sec": 1.0,
        "prefill_tokens_per_sec": 400.0,
        "decode_time_per_token_sec": 0.5,
        "decode_tokens_per_sec": 8.0,
        "peak_memory_bytes": 77,
    }
    (entry,) = bench.record.find("decode_tokens_per_sec", path="base")
    assert entry["interval"].n == 3
    assert (entry["batch"], entry["precision"], entry["prompt_tokens"], entry["new_tokens"]) == (4, "nf4", 100, 5)


def test_a_path_that_runs_out_of_memory_ends(generation):
    bench = generation(breaks_at=2)
    assert bench.measure_path("base", PROMPTS, [1, 2, 4], STOPS) == 1
    first, second = bench.record.find("decode_tokens_per_sec", path="base")
    assert [(entry["batch"], entry["value"]) for entry in (first, second)] == [(1, 2.0), (2, None)]
    assert "CUDA out of memory. Tried to allocate 2 GiB" in second["note"]
    assert generation(breaks_at=1).measure_path("base", PROMPTS, [1], STOPS) == 0
    with pytest.raises(RuntimeError, match="illegal memory access"):
        generation(breaks_at=1, error=RuntimeError("illegal memory access")).measure_path("base", PROMPTS, [1], STOPS)
