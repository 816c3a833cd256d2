"""Fake training without torch: writes the record of bench/workloads/training.py in tenths of a second.

`install_fake_training` replaces the real module in a copy of the project, for tests that do not need real numbers. The
trial's process, phases, stops, progress, telemetry and result are real. The recipe fast is FASTER times as fast.
"""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

from bench.data.inputs import Inputs
from bench.harness.record import Record
from bench.harness.termination import StopSignals
from bench.machine import fingerprint
from bench.records.result import Steps

STEP_SEC, TOKENS = 0.02, 64
FASTER = 50  # more than the noise of a busy machine can hide
HOLD = Path(__file__).with_name("hold")  # while this file exists, a trial stays in its next step


def install_fake_training(project: Path) -> Path:
    """Replace the training of this copy of the project. Returns the file that holds every trial while it exists."""
    module = project / "bench" / "workloads" / "training.py"
    module.unlink()  # it may be a hard link to the module of other copies
    shutil.copy(__file__, module)
    return hold_file(project)


def hold_file(project: Path) -> Path:
    return project / "bench" / "workloads" / HOLD.name


def measure(record: Record, _: Inputs, stops: StopSignals) -> None:
    trial = record.trial
    with record.timed("import"):
        stops.check()
    cuda = SimpleNamespace(is_available=lambda: False)
    torch = SimpleNamespace(
        __version__="0",
        cuda=cuda,
        get_num_threads=lambda: 1,
        get_float32_matmul_precision=lambda: "highest",
        version=SimpleNamespace(cuda=None),
    )
    record.fingerprint.update(fingerprint.device_facts(torch))
    for phase, count, steps in (
        ("warmup", trial.warmup_steps, record.warmup),
        ("measure", trial.measured_steps, record.steps),
    ):
        with record.timed(phase):
            for _ in range(count):
                _step(record, steps, stops)


def _step(record: Record, steps: Steps, stops: StopSignals) -> None:
    began = time.perf_counter()
    time.sleep(STEP_SEC)
    while HOLD.exists():
        time.sleep(STEP_SEC)
        stops.check()
    stops.check()
    steps.step_time_sec.append(time.perf_counter() - began)
    steps.loss.append(1.0)
    steps.samples.append(2.0)
    tokens = TOKENS * (FASTER if record.trial.recipe == "fast" else 1)
    steps.tokens.append(tokens)
    steps.useful_tokens.append(tokens)
    record.publish_progress()
