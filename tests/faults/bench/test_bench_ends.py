"""Real trials with every kind of ending: each leaves a complete result or none, never a partial one.

They are forked from a server that has imported the stack.
"""

import json
import re
import shutil
import signal
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.records import Trial, suite
from bench.records.result import TrialResult
from bench.records.status import ExitCode, ReasonCode, TrialStatus
from tests.support.hosts.local_fleet import fill_disk, wait_for
from tests.support.small_inputs import edit_json

PHASE_SEC = 120.0
pytestmark = pytest.mark.slow


@pytest.fixture
def tiny_trial(make_trial, tiny_model: Path, tiny_data: Path) -> Callable[..., Trial]:
    def make(**changes: Any) -> Trial:
        return make_trial(**({"model": str(tiny_model), "data": str(tiny_data)} | changes))

    return make


def wait_for_step(process: subprocess.Popen[str], out: Path, phase: str, step: int) -> None:
    """Wait until the trial's progress shows `phase` with at least `step` steps done."""

    def is_reached() -> bool:
        assert process.poll() is None, f"ended before {phase}: {process.communicate()}"
        if not (out / "progress.json").exists():
            return False
        progress = json.loads((out / "progress.json").read_text())
        return progress["phase"] == phase and progress["step"] >= step

    wait_for(is_reached, f"step {step} of {phase}", PHASE_SEC)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PHASE_SEC)
    return process.returncode, out, err


def read_result(process: subprocess.Popen[str], out: Path, code: int, status: TrialStatus) -> TrialResult:
    """Wait for the trial's end, check exit code and status, and return its result."""
    assert finish(process)[0] == code
    result = TrialResult.read(out / "result.json")
    assert result.status is status, result.reason
    return result


def test_a_quick_trial_succeeds_and_its_loss_visibly_falls(start, tmp_path, tiny_model, tiny_data):
    model, data = tmp_path / 'it\'s "a" model', tmp_path / "$(touch x) data.jsonl"
    model.symlink_to(tiny_model)
    data.symlink_to(tiny_data)
    out = tmp_path / "out with 'quotes' and spaces"
    (full_trial,) = (trial for trial in suite("quick", "tiny", str(model), str(data)) if trial.trial_id == "optimized")
    trial = replace(full_trial, warmup_steps=1, measured_steps=8)
    code, output, err = finish(start(trial, out))
    assert (code, err) == (0, "")
    result = TrialResult.read(out / "result.json")
    assert (result.status, result.reason) == (TrialStatus.SUCCEEDED, None)
    assert (result.trial, result.worker) == (trial, "it's w-1")
    assert set(result.phases) == {"import", "data", "load", "warmup", "measure", "ceilings"}
    losses = [loss for loss in result.steps.loss if loss is not None]
    assert len(losses) == trial.measured_steps
    assert statistics.mean(losses[-3:]) < statistics.mean(losses[:3]) - 0.2
    assert result.steps.tokens == [trial.tokens_per_step] * trial.measured_steps
    assert result.metrics is not None
    assert 0 < result.metrics.useful_tokens_per_sec < result.metrics.tokens_per_sec
    assert output.splitlines()[-1].split("] ", 1)[1].startswith(f"SUCCEEDED {trial.trial_id} [tiny]: ")
    assert result.fingerprint["seed"] == 42
    assert "not paged" in result.fingerprint["optimizer"]


def test_every_other_option_works_too(run_trial, tiny_trial):
    trial = tiny_trial(
        recipe="fast",
        layout="varlen",
        base_precision="bf16",
        optimizer="adamw_torch",
        gradient_checkpointing=False,
        data_workers=2,
        gradient_accumulation_steps=2,
        lora_targets=("q_proj", "down_proj"),
    )
    result, _ = run_trial(trial)
    assert result.steps.tokens == [trial.tokens_per_step] * 2
    assert result.metrics is not None
    assert result.metrics.padding_percent < 20
    assert result.fingerprint["optimizer"] == "torch AdamW, 32 bit"
    assert result.fingerprint["recipe"].startswith("stock (fast is not supported: ")


def test_a_tokenizer_without_padding_pads_with_its_end_token(run_trial, tiny_trial, tiny_model, tmp_path):
    model = shutil.copytree(tiny_model, tmp_path / "model", ignore=shutil.ignore_patterns("SHA256SUMS"))
    edit_json(model / "tokenizer_config.json", pad_token=None)
    trial = tiny_trial(
        model=str(model), recipe="fast", matmul="int8", max_seq_len=512, warmup_steps=0, measured_steps=1
    )
    result, log = run_trial(trial)
    assert result.fingerprint["recipe"] == "fast"
    assert any(flag.startswith("matmul bf16 (int8 is not supported") for flag in result.flags)
    assert "padding token" in log
    assert result.metrics is not None
    assert result.metrics.padding_percent > 0


BROKEN_IMPORT = """
import bench.qlora.step, signal
def choose_placement(_):
    try: {first}
    except BaseException: raise LookupError('no\\ndevice') from None
bench.qlora.step.choose_placement = choose_placement
"""


@pytest.mark.parametrize(
    ("first", "code", "status", "reason"),
    [
        ("signal.raise_signal(signal.SIGTERM)", 143, TrialStatus.PREEMPTED, "stopped by SIGTERM"),
        ("1 / 0", 1, TrialStatus.FAILED, "LookupError: no device"),
    ],
)
def test_an_error_has_its_traceback_in_the_log_and_a_stop_that_became_one_is_a_stop(
    start, tmp_path, tiny_trial, first, code, status, reason
):
    process = start(tiny_trial(), tmp_path, before=BROKEN_IMPORT.format(first=first))
    result = read_result(process, tmp_path, code, status)
    assert (result.metrics, result.reason) == (None, f"{reason} (in import, 0 of 3 steps done)")
    assert any("choose_placement" in line for line in result.log_tail)


@pytest.mark.parametrize(
    ("phase", "number", "code", "status"),
    [
        ("warmup", signal.SIGTERM, 143, TrialStatus.PREEMPTED),
        ("measure", signal.SIGINT, 130, TrialStatus.CANCELLED),
    ],
)
def test_a_stop_keeps_what_was_measured(start, tmp_path, tiny_trial, phase, number, code, status):
    process = start(tiny_trial(**{"warmup_steps" if phase == "warmup" else "measured_steps": 10_000}), tmp_path)
    wait_for_step(process, tmp_path, phase, 3)
    process.send_signal(number)
    result = read_result(process, tmp_path, code, status)
    assert re.match(f"[^(]*{number.name}[^(]*\\(in {phase}, ", str(result.reason))
    steps = {"warmup": result.warmup, "measure": result.steps}[phase]
    assert len(steps.loss) == len(steps.step_time_sec) >= 2
    assert (result.metrics is None) == (phase == "warmup")


def test_a_deadline_that_passes_ends_the_trial(start, tmp_path, tiny_trial):
    process = start(tiny_trial(measured_steps=100_000, deadline_sec=1.0), tmp_path)
    result = read_result(process, tmp_path, 1, TrialStatus.TIMED_OUT)
    assert re.match(r"[^(]* 1 s [^(]*\(in ", str(result.reason))


def test_a_non_finite_loss_fails_with_its_step(start, tmp_path, tiny_model, tiny_trial):
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "SHA256SUMS").unlink()
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-(1 << 20) :] = b"\xc0\x7f" * (1 << 19)  # the last half million weights become bf16's not-a-number
    weights.write_bytes(content)
    out = tmp_path / "out"
    result = read_result(start(tiny_trial(model=str(model), warmup_steps=0), out), out, 1, TrialStatus.FAILED)
    assert result.reason_code is ReasonCode.NON_FINITE_LOSS
    assert str(result.reason).startswith("NonFiniteLoss: the loss is nan at measure step 1 ")
    assert "learning_rate" in str(result.remedy)
    assert result.steps.loss == [None]


def test_a_disk_that_fills_up_later_gives_one_line_and_no_partial_result(start, small_disk, tiny_trial):
    process = start(tiny_trial(measured_steps=100_000), small_disk)
    wait_for_step(process, small_disk, "measure", 2)
    fill_disk(small_disk)
    process.terminate()
    code, output, err = finish(process)
    assert code == ExitCode.NOT_WRITTEN
    assert re.fullmatch(rf"{small_disk / 'result.json'}: .*: No space left on device\n", err)
    assert "PREEMPTED small [tiny]" in output
    assert not [entry.name for entry in small_disk.iterdir() if "result" in entry.name]
