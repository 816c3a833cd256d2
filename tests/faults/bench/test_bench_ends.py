"""Real trials, ended in every way a trial can end: each leaves a result that says so, or none, never half of one.

Two are started as processes of their own, the others by a server that has imported the stack.
"""

import json
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
from bench.records.checksummed import ResultError
from bench.records.paths import EXIT_NOT_WRITTEN
from bench.records.result import TrialResult, TrialStatus
from tests.support.hosts.local_fleet import fill, wait_for

PHASE_SEC = 120.0
pytestmark = pytest.mark.slow


@pytest.fixture
def tiny_trial(make_trial, tiny_model: Path, tiny_data: Path) -> Callable[..., Trial]:
    def make(**changes: Any) -> Trial:
        return make_trial(**({"model": str(tiny_model), "data": str(tiny_data)} | changes))

    return make


def until(process: subprocess.Popen[str], out: Path, phase: str, step: int) -> None:
    """The trial says that it is in `phase` with `step` steps done."""

    def is_there() -> bool:
        assert process.poll() is None, f"ended before {phase}: {process.communicate()}"
        if not (out / "progress.json").exists():
            return False
        progress = json.loads((out / "progress.json").read_text())
        return progress["phase"] == phase and progress["step"] >= step

    wait_for(is_there, f"step {step} of {phase}", PHASE_SEC)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PHASE_SEC)
    return process.returncode, out, err


def ended(process: subprocess.Popen[str], out: Path, code: int, end: TrialStatus) -> TrialResult:
    """What the trial has left in `out`, having ended with this exit code."""
    assert finish(process)[0] == code
    result = TrialResult.read(out / "result.json")
    assert result.status is end, result.reason
    return result


@pytest.mark.parametrize("name", ["baseline", "optimized"])
def test_a_quick_trial_succeeds_and_its_loss_visibly_falls(start, tmp_path, tiny_model, tiny_data, name):
    model, data = tmp_path / 'it\'s "a" model', tmp_path / "$(touch x) data.jsonl"
    model.symlink_to(tiny_model)
    data.symlink_to(tiny_data)
    out = tmp_path / "out with 'quotes' and spaces"
    (whole,) = (trial for trial in suite("quick", "tiny", str(model), str(data)) if trial.trial_id == name)
    trial = replace(whole, warmup_steps=1, measured_steps=8)
    code, said, err = finish(start(trial, out, from_nothing=name == "optimized"))
    assert (code, err) == (0, "")
    result = TrialResult.read(out / "result.json")
    assert (result.status, result.reason, result.trial, result.worker) == (
        TrialStatus.SUCCEEDED,
        None,
        trial,
        "it's w-1",
    )
    assert set(result.phases) == {"import", "data", "load", "warmup", "measure", "ceilings"}
    losses = [loss for loss in result.steps.loss if loss is not None]
    assert len(losses) == trial.measured_steps
    assert statistics.mean(losses[-3:]) < statistics.mean(losses[:3]) - 0.2
    assert result.steps.tokens == [trial.tokens_per_step] * trial.measured_steps
    assert result.metrics is not None
    assert 0 < result.metrics.useful_tokens_per_sec < result.metrics.tokens_per_sec
    assert said.splitlines()[-1].split("] ", 1)[1].startswith(f"SUCCEEDED {name} [tiny]: ")
    assert result.fingerprint["seed"] == 42
    assert "not paged" in result.fingerprint["optimizer"]


def test_every_other_option_works_too(measured, tiny_trial):
    trial = tiny_trial(
        layout="pack",
        base_precision="bf16",
        optimizer="adamw_torch",
        gradient_checkpointing=False,
        data_workers=2,
        gradient_accumulation_steps=2,
        lora_targets=("q_proj", "down_proj"),
    )
    result, _ = measured(trial)
    assert result.steps.useful_tokens == result.steps.tokens == [trial.tokens_per_step] * 2
    assert result.metrics is not None
    assert result.metrics.padding_percent == 0
    assert result.fingerprint["optimizer"] == "torch AdamW, 32 bit"


def test_sigterm_while_importing_is_preempted(start, tmp_path, tiny_trial):
    process = start(tiny_trial(), tmp_path, from_nothing=True)
    until(process, tmp_path, "import", 0)
    process.terminate()
    result = ended(process, tmp_path, 143, TrialStatus.PREEMPTED)
    assert result.metrics is None
    assert "stopped by SIGTERM (in import, 0 of 3 steps done)" in str(result.reason)


def test_a_stop_that_a_library_made_an_error_of_is_still_the_stop(start, tmp_path, tiny_trial):
    broken = (
        "import bench.qlora.session, signal\n"
        "def choose_placement(_):\n"
        "    try: signal.raise_signal(signal.SIGTERM)\n"
        "    except BaseException: raise RecursionError('half an import') from None\n"
        "bench.qlora.session.choose_placement = choose_placement"
    )
    result = ended(start(tiny_trial(), tmp_path, before=broken), tmp_path, 143, TrialStatus.PREEMPTED)
    assert result.metrics is None
    assert "stopped by SIGTERM (in import, 0 of 3 steps done)" in str(result.reason)
    assert any("half an import" in line for line in result.log_tail)


def test_sigterm_in_warmup_is_preempted_and_measured_nothing(start, tmp_path, tiny_trial):
    process = start(tiny_trial(warmup_steps=10_000), tmp_path)
    until(process, tmp_path, "warmup", 1)
    process.terminate()
    result = ended(process, tmp_path, 143, TrialStatus.PREEMPTED)
    assert (result.metrics, result.steps.step_time_sec) == (None, [])
    assert len(result.warmup.step_time_sec) >= 1


@pytest.mark.parametrize(
    ("number", "code", "end", "reason"),
    [
        (signal.SIGINT, 130, TrialStatus.CANCELLED, "stopped by SIGINT"),
        (
            signal.SIGALRM,
            1,
            TrialStatus.TIMED_OUT,
            "the deadline of 300 s passed",
        ),  # the deadline's own signal, at our moment
    ],
)
def test_a_stop_in_measuring_keeps_the_steps_measured(start, tmp_path, tiny_trial, number, code, end, reason):
    process = start(tiny_trial(measured_steps=100_000, deadline_sec=300.0), tmp_path)
    until(process, tmp_path, "measure", 3)
    process.send_signal(number)
    result = ended(process, tmp_path, code, end)
    assert str(result.reason).startswith(f"{reason} (in measure, ")
    assert result.metrics is not None
    assert result.metrics.step_time_sec.n == len(result.steps.loss) == len(result.steps.step_time_sec) >= 2


def test_a_deadline_that_passes_ends_the_trial(start, tmp_path, tiny_trial):
    process = start(tiny_trial(measured_steps=100_000, deadline_sec=1.0), tmp_path)
    result = ended(process, tmp_path, 1, TrialStatus.TIMED_OUT)
    assert str(result.reason).startswith("the deadline of 1 s passed (in ")


def test_sigkill_in_measuring_leaves_no_result_and_no_torn_file(start, tmp_path, tiny_trial):
    process = start(tiny_trial(measured_steps=100_000), tmp_path)
    until(process, tmp_path, "measure", 3)
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    with pytest.raises(ResultError, match="cannot be read: No such file"):
        TrialResult.read(tmp_path / "result.json")
    assert json.loads((tmp_path / "progress.json").read_text())["phase"] == "measure"


def test_memory_that_runs_out_is_its_own_end(start, tmp_path, tiny_trial, demo_data):
    trial = tiny_trial(data=str(demo_data), max_seq_len=4096, micro_batch_size=1024)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))"
    result = ended(start(trial, tmp_path, before=limit), tmp_path, 1, TrialStatus.OUT_OF_MEMORY)
    assert "(in warmup, 0 of 3 steps done)" in str(result.reason)


def test_a_loss_that_is_no_number_fails_by_its_step(start, tmp_path, tiny_model, tiny_trial):
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "SHA256SUMS").unlink()
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-(1 << 20) :] = b"\xc0\x7f" * (1 << 19)  # the last half million weights become bf16's not-a-number
    weights.write_bytes(content)
    out = tmp_path / "out"
    result = ended(start(tiny_trial(model=str(model), warmup_steps=0), out), out, 1, TrialStatus.FAILED)
    assert str(result.reason).startswith("NonFiniteLoss: the loss is nan at measure step 1; ")
    assert result.steps.loss == [None]


def test_an_unforeseen_error_fails_with_its_traceback_in_the_log(start, tmp_path, tiny_trial):
    broken = (
        "import bench.qlora.session\ndef choose_placement(_): raise LookupError('no\\nplace')\n"
        "bench.qlora.session.choose_placement = choose_placement"
    )
    result = ended(start(tiny_trial(), tmp_path, before=broken), tmp_path, 1, TrialStatus.FAILED)
    assert result.reason == "LookupError: no place (in import, 0 of 3 steps done)"
    assert any("raise LookupError" in line or "in choose_placement" in line for line in result.log_tail)


def test_a_library_that_is_missing_fails_by_its_name(start, tmp_path, tiny_trial):
    process = start(tiny_trial(), tmp_path, before="import sys; sys.modules['torch'] = None")
    assert "torch" in str(ended(process, tmp_path, 1, TrialStatus.FAILED).reason)


def test_a_full_disk_is_refused_before_any_work(start, small_disk, tiny_trial):
    fill(small_disk)
    code, said, err = finish(start(tiny_trial(), small_disk))
    assert (code, said) == (2, "")
    assert err.startswith(f"{small_disk}: ")
    assert err.endswith("No space left on device; name another --out\n")
    assert [entry.name for entry in small_disk.iterdir()] == ["filler"]


def test_a_read_only_folder_is_refused_before_any_work(start, small_disk, tiny_trial):
    subprocess.run(("mount", "-o", "remount,ro", str(small_disk)), check=True)
    code, said, err = finish(start(tiny_trial(), small_disk / "out"))
    assert (code, said) == (2, "")
    assert err.startswith(f"{small_disk / 'out'}: ")
    assert err.endswith("Read-only file system; name another --out\n")


def test_a_disk_that_fills_up_later_leaves_one_line_and_no_torn_result(start, small_disk, tiny_trial):
    process = start(tiny_trial(measured_steps=100_000), small_disk)
    until(process, small_disk, "measure", 2)
    fill(small_disk)
    process.terminate()
    code, said, err = finish(process)
    assert code == EXIT_NOT_WRITTEN
    assert err == f"{small_disk / 'result.json'}: the result cannot be written: No space left on device\n"
    assert "PREEMPTED small [tiny]" in said
    assert not [entry.name for entry in small_disk.iterdir() if "result" in entry.name]
