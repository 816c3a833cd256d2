"""A training trial's phases and predicted memory."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from bench import torch_stack
from bench.harness.record import PHASES, Clock, PhaseClock, Record, Request
from bench.predict import memory
from bench.workloads import training


def test_phases_are_summed_over_micro_batches_and_add_up_to_the_step(monkeypatch):
    ticks = iter([10.0, 10.5, 12.5, 16.5, 17.0, 19.0, 23.0, 24.0])
    monkeypatch.setattr(torch_stack, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    clock = PhaseClock(SimpleNamespace(), is_cuda=False)
    clock.begin()
    for phase in ("data", "forward", "backward") * 2:
        clock.end(phase)
    clock.end("optimizer")
    assert clock.read() == {"data": 1.0, "forward": 4.0, "backward": 8.0, "optimizer": 1.0}


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


@pytest.mark.parametrize(
    ("built", "notes", "captured", "changes"),
    [
        ("fast", "matmul int8", "yes", {}),
        ("fast", "matmul bf16 (int8 is not supported: a weight of 72 x 64)", "no: memory", {"matmul": "bf16"}),
        ("stock (fast is not supported: a bias)", None, "yes", {"recipe": "stock", "held_layers": 0, "matmul": "bf16"}),
    ],
)
def test_predicted_memory_belongs_to_the_recipe_that_was_built(
    make_trial, model_folder, tmp_path, built, notes, captured, changes
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
