"""Decoding and the tiny inference trial, run in processes."""

import subprocess

import pytest

BOTH_PATHS = """
import sys
from bench import torch_stack
from bench.workloads import decoding
from bench.qlora import step

modules = torch_stack.load()
torch = modules.torch
model = modules.transformers.AutoModelForCausalLM.from_pretrained(
    sys.argv[1], local_files_only=True, **modules.dtype_argument(torch.float32)
)
model.config.use_cache = False  # like step.load_base
decoding.prepare_model(modules, model)
placement = step.Placement(device=torch.device("cpu"), compute_dtype=torch.float32)
torch.manual_seed(0)
for batch, prompt_tokens, new_tokens in ((1, 16, 9), (3, 24, 20), (2, 8, 1)):
    prompts = torch.randint(6, 4000, (batch, prompt_tokens))
    default = decoding.DefaultPath(modules, model, placement, prompts, new_tokens)
    fast = decoding.FastPath(modules, model, placement, prompts, new_tokens, capture=False)
    answers = [default.generate(), fast.generate(), fast.generate()]
    expected = answers[0].tokens
    assert expected.shape == (batch, new_tokens), expected.shape
    assert len(expected.unique()) > batch * new_tokens // 2, "a repetitive answer proves little"
    for answer in answers[1:]:
        assert torch.equal(answer.tokens, expected), (answer.tokens, expected)
        assert (answer.decode_sec is None) == (new_tokens == 1)
print("equal")
"""


@pytest.mark.slow
def test_both_paths_write_the_same_tokens(tiny_model, bench_environment, bench_server):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with bench_server.start("-c", BOTH_PATHS, str(tiny_model), env=bench_environment, **pipes) as process:
        assert process.communicate(timeout=120) == ("equal\n", "")
    assert process.returncode == 0


@pytest.mark.slow
def test_a_small_model_answers_batches_of_one_and_two(make_trial, tiny_model, tiny_data, run_trial):
    shape = {"micro_batch_size": 2, "new_tokens": 3}
    result, _ = run_trial(make_trial(kind="inference", model=str(tiny_model), data=str(tiny_data), **shape))
    measurements = {(m.name, m.context.get("batch"), m.context.get("path")): m for m in result.measurements}
    for batch in (1, 2):
        for name in ("time_to_first_token_sec", "prefill_tokens_per_sec", "decode_tokens_per_sec"):
            measurement = measurements[name, batch, "default"]
            assert measurement.value is not None
            assert measurement.value > 0
            assert measurement.interval is not None
            assert measurement.interval.n == 3
        assert measurements["decode_tokens_per_sec", batch, "fast"].value is None
    assert measurements["largest_batch_sequences", None, "default"].value == 2
