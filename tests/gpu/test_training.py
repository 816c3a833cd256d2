"""A training trial on a real GPU: phases by device events, out of memory as a result, environment.json.

These use the small model and take seconds. Full sizes: `python -m tests.benchmarks.fast_step`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.commands.cli import apply_overrides
from bench.harness.record import PHASES
from bench.records import Trial
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from tests.support.gpu import on_gpu, run_trial

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), on_gpu]


@pytest.fixture
def measure(tmp_path: Path) -> Callable[..., TrialResult]:
    def run(trial: Trial, before: str = "pass") -> TrialResult:
        code = f"{before}\nimport runpy, sys\nsys.argv[0] = 'bench'\nrunpy.run_module('bench', run_name='__main__')"
        return run_trial(trial, tmp_path, program=("-c", code))

    return run


@pytest.fixture
def gpu_trial(make_trial, tiny_model: Path, demo_data: Path) -> Trial:
    return make_trial(
        model=str(tiny_model),
        data=str(demo_data),
        max_seq_len=512,
        micro_batch_size=8,
        gradient_accumulation_steps=2,
        warmup_steps=3,
        measured_steps=10,
    )


def test_phases_by_device_events_make_up_the_step(measure, gpu_trial):
    result = measure(gpu_trial)
    assert (result.status, result.reason) == (TrialStatus.SUCCEEDED, None)
    device = {"device": "cuda", "compute_dtype": "bfloat16", "optimizer": "bitsandbytes AdamW, 8 bit, paged"}
    assert device.items() <= result.fingerprint.items()
    measurements = {item.name: item for item in result.measurements}
    phases = [measurements[f"step_{phase}_sec"] for phase in PHASES]
    assert all(item.value is not None and item.value > 0 for item in phases)
    assert {item.context["clock"] for item in phases} == {"device"}
    assert {item.interval.n for item in phases if item.interval is not None} == {10}
    # Device events lie within the step by the host clock, which also has the launch before and the wait after.
    assert result.metrics is not None
    stamped = sum(item.value for item in phases if item.value is not None)
    assert 0.5 * result.metrics.step_time_sec.median < stamped < 1.1 * result.metrics.step_time_sec.median


def test_a_trial_that_runs_out_of_memory_has_the_allocation_and_its_peak(measure, gpu_trial):
    limit_bytes = 1 << 30
    limit = (
        "import bench.qlora.step\n"
        "place = bench.qlora.step.choose_placement\n"
        "def limited(stack):\n"
        "    total = stack.torch.cuda.get_device_properties(0).total_memory\n"
        f"    stack.torch.cuda.set_per_process_memory_fraction({limit_bytes} / total)\n"
        "    return place(stack)\n"
        "bench.qlora.step.choose_placement = limited"
    )
    result = measure(apply_overrides(gpu_trial, ["micro_batch_size=32", "max_seq_len=4096"]), before=limit)
    assert result.status is TrialStatus.OUT_OF_MEMORY
    assert "Tried to allocate" in str(result.reason)
    assert "; peak VRAM " in str(result.reason)
