"""Hours and dollars of a training on each shape: measured, estimated or unknown, the cheapest first."""

import dataclasses
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.records import Trial
from bench.records.forecast import ChipForecast
from tasks.fleet import trial_spec
from tasks.settings.layers import Settings
from tasks.settings.sections import CostSection
from tasks.train import shapes
from tests.support.reports import synthetic
from tests.unit.tasks.train.test_forecast import SLOW, make_probe, write_measured_run

TABLE = """
schema_version: 1
shapes:
  ONE: {gpu: NVIDIA A10, gpus: 1, on_demand: {amount: 2, unit: USD per GPU hour, source: s, dated: 2026-01-01}}
  FOUR: {gpu: NVIDIA A10, gpus: 4, on_demand: {amount: 2, unit: USD per GPU hour, source: s, dated: 2026-01-01}}
  BIG:
    gpu: NVIDIA H200
    gpus: 2
    on_demand: {amount: 10, unit: USD per GPU hour, source: s, dated: 2026-01-01}
    preemptible: {amount: 5, unit: USD per GPU hour, source: s, dated: 2026-01-01}
  TINY: {gpu: NVIDIA T4, gpus: 1, on_demand: {amount: 0.1, unit: USD per GPU hour, source: s, dated: 2026-01-01}}
  OTHER:
    gpu: AMD Instinct MI300X
    gpus: 8
    on_demand: {amount: 6, unit: USD per GPU hour, source: s, dated: 2026-01-01}
"""
CHIPS = [
    ChipForecast(name="NVIDIA A10", fits=True, row_sec=9.0, row_sec_low=6.0, row_sec_high=12.0),
    ChipForecast(name="NVIDIA H200", fits=True, row_sec=0.9, row_sec_low=0.6, row_sec_high=1.2),
    ChipForecast(name="NVIDIA T4", fits=False, row_sec=30.0, row_sec_low=20.0, row_sec_high=40.0),
]
STEPS, ROWS = 400, 4


@pytest.fixture
def priced(settings: Callable[..., Settings], tmp_path: Path) -> Settings:
    (tmp_path / "table.yaml").write_text(TABLE)
    made = settings(rows_per_step=ROWS)
    return dataclasses.replace(made, cost=CostSection(prices=str(tmp_path / "table.yaml")))


@pytest.fixture
def trial(priced: Settings) -> Trial:
    return trial_spec.make_trial(priced, 1)


def rows_of(priced: Settings, trial: Trial, **fields: Any) -> dict[str, shapes.ShapeCost]:
    costs = shapes.shape_costs(priced, trial, make_probe(chips=CHIPS, steps=STEPS, **fields))
    return {cost.shape: cost for cost in costs}


def test_the_cheapest_that_fits_is_first_and_the_unknown_before_what_does_not_fit(
    priced: Settings, trial: Trial
) -> None:
    rows = rows_of(priced, trial)
    assert list(rows) == ["BIG", "ONE", "FOUR", "OTHER", "TINY"]
    assert [row.basis for row in rows.values()] == [*[shapes.ESTIMATED] * 3, shapes.UNKNOWN, shapes.ESTIMATED]
    assert [row.fits for row in rows.values()] == [True, True, True, None, False]
    hours, usd = rows["ONE"].hours, rows["ONE"].usd
    assert hours is not None
    assert usd is not None
    assert (hours.value, hours.low, hours.high) == (4.0, pytest.approx(4 * 6 / 9), pytest.approx(4 * 12 / 9))
    assert (usd.value, rows["FOUR"].usd) == (8.0, usd), "four GPUs take a quarter of the time"
    assert rows["OTHER"].usd is None
    on_demand, preemptible = rows["BIG"].usd, rows["BIG"].preemptible_usd
    assert on_demand is not None
    assert preemptible == on_demand.times(0.5)
    assert rows["ONE"].preemptible_usd is None


def test_hours_are_measured_where_a_run_measured_that_gpu(priced: Settings, trial: Trial) -> None:
    write_measured_run(priced, trial, measurements=[], fingerprint=synthetic.fingerprint(gpu_name="NVIDIA A10"))
    rows = rows_of(priced, trial)
    assert {name for name, row in rows.items() if row.basis == shapes.MEASURED} == {"ONE", "FOUR"}
    hours = rows["ONE"].hours
    assert hours is not None
    assert math.isclose(hours.value, STEPS * ROWS * (19 * 0.1 + SLOW) / 20 / 3600, rel_tol=1e-6)


@pytest.mark.parametrize("steps", [1, 100 * STEPS])
def test_the_table_fits_eighty_columns(priced: Settings, trial: Trial, steps: int) -> None:
    out = Console(file=io.StringIO(), width=80)
    costs = shapes.shape_costs(priced, trial, make_probe(chips=CHIPS, steps=steps))
    longest = [dataclasses.replace(row, shape=row.shape.ljust(16, "x")) for row in costs]  # as BM.GPU.A100-v2.8
    shapes.show_shapes(out, longest)
    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.endswith(("estimated", "unknown  "))]
    assert len(rows) == len(costs), "no row is folded"
    assert any("8 MI300X" in line and "unknown" in line for line in rows)


def test_a_hosted_service_is_priced_by_the_tokens_of_the_steps(priced: Settings, trial: Trial) -> None:
    probe = make_probe(steps=10)
    assert shapes.hosted_line(priced, trial, probe) is None
    cost = dataclasses.replace(priced.cost, hosted_usd_per_million_tokens=0.5, hosted_source="a list, 2026-11-20")
    hosted = dataclasses.replace(priced, cost=cost)
    rows_trained = min(10 * ROWS, probe.data.rows)
    tokens = probe.data.tokens * rows_trained / probe.data.rows
    line = shapes.hosted_line(hosted, trial, probe) or ""
    assert f"{tokens:,.0f} tokens" in line
    assert "a list, 2026-11-20" in line
