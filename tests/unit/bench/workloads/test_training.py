"""A training trial's phases and predicted memory."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest

from bench.harness.record import PHASES, Clock, PhaseClock, Record, Request
from bench.predict import memory
from bench.workloads import training

# Phases of a step -----------------------------------------------------------------------------------------------------


class Device:
    """A fake device that reaches each event a millisecond after the previous one."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.cuda = SimpleNamespace(Event=self.event)

    def event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        event = SimpleNamespace(at=None, synchronize=lambda: None)

        def record() -> None:
            self.now_ms += 1.0
            event.at = self.now_ms

        event.record = record
        event.elapsed_time = lambda later: later.at - event.at
        return event


def run_step(clock: PhaseClock, accumulation: int) -> None:
    clock.begin()
    for _ in range(accumulation):
        for phase in ("data", "forward", "backward"):
            clock.end(phase)
    clock.end("optimizer")


def test_device_event_phases_are_summed_over_micro_batches_in_seconds():
    clock = PhaseClock(Device(), is_cuda=True)
    for _ in range(5):
        run_step(clock, 3)
    assert clock.read() == pytest.approx({"data": 3e-3, "forward": 3e-3, "backward": 3e-3, "optimizer": 1e-3})


@pytest.fixture
def record(make_record) -> Record:
    return make_record()


def test_each_phase_becomes_a_measurement_with_an_interval(record):
    training._add_phases(record, [dict.fromkeys(PHASES, seconds) for seconds in (0.1, 0.3, 0.2)])
    assert [item.name for item in record.measurements] == [
        *("step_data_sec", "step_forward_sec", "step_backward_sec", "step_optimizer_sec")
    ]
    for item in record.measurements:
        assert item.interval is not None
        assert (item.value, item.interval.median, item.interval.n) == (0.2, 0.2, 3)
        assert item.context == {"clock": "host"}


def test_a_trial_without_steps_has_no_phases(record):
    training._add_phases(record, [])
    assert record.measurements == []


# Predicted memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("captured", ["yes", "no: not enough memory"])
@pytest.mark.parametrize(
    ("built", "notes", "changes"),
    [
        ("fast", "matmul int8", {}),
        ("fast", "matmul bf16 (int8 is not supported: a weight of 72 x 64)", {"matmul": "bf16"}),
        (
            "stock (fast is not supported: a bias on q_proj)",
            None,
            {"recipe": "stock", "held_layers": 0, "matmul": "bf16"},
        ),
    ],
)
def test_predicted_memory_belongs_to_the_recipe_that_was_built(
    make_trial, model_folder, tmp_path, built, notes, changes, captured
):
    trial = make_trial(model=str(model_folder), recipe="fast", held_layers=1, matmul="int8")
    record = Record(Request(out=tmp_path), trial, Clock())
    record.fingerprint |= {"recipe": built, "recipe_notes": notes, "step_captured": captured}
    config = json.loads((model_folder / "config.json").read_text())
    training._add_prediction(record, config)
    (measurement,) = record.measurements
    assert (measurement.name, measurement.value) == (
        "predicted_peak_vram_bytes",
        memory.peak_bytes(config, dataclasses.replace(trial, **changes), captured=captured == "yes"),
    )
    assert measurement.context == {"recipe": built.split()[0]}
