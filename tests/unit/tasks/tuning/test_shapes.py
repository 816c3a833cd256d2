"""The cheapest configuration on each priced GPU: the measured best, estimates, what fits nowhere, what is unknown."""

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from tasks.settings.load import Settings
from tasks.tuning import shapes
from tasks.tuning.search_state import ChipRates, TuneRecord
from tests.support.tuning_candidates import measured_candidate, predicted_candidates

RECIPES = ("reference", "stock", "fast")


def chip(name: str, largest_peak_bytes: int, factor: float) -> ChipRates:
    rates = {recipe: [0.5 * factor, factor, 2.0 * factor] for recipe in RECIPES}
    return ChipRates(name=name, largest_peak_bytes=largest_peak_bytes, rates=rates)


CHIPS = [chip("NVIDIA A10", 22 << 30, 10.0), chip("NVIDIA H200", 130 << 30, 100.0), chip("NVIDIA L40S", 1, 50.0)]


@pytest.fixture
def record() -> TuneRecord:
    candidates = [
        dataclasses.replace(candidate, score=float(number + 1), peak_bytes=(number + 1) << 30)
        for number, candidate in enumerate(predicted_candidates()[:30])
    ]
    return TuneRecord(
        tune_id="t", gpu="NVIDIA A10", model_sha256="", data_sha256="", longest=1, depth=1, limit_bytes=None,
        settings={}, candidates=candidates, chips=CHIPS,
    )  # fmt: skip


def test_a_row_has_the_fastest_candidate_that_fits_the_gpu(tmp_path: Path, record: TuneRecord) -> None:
    rows = {row.gpu: row for row in shapes.shape_rates(Settings(root=tmp_path), record)}
    a10, h200 = rows["NVIDIA A10"], rows["NVIDIA H200"]
    assert (a10.configuration, h200.configuration) == (record.candidates[21].key, record.candidates[29].key)
    assert a10.rate is not None
    assert (a10.rate.value, a10.rate.low, a10.rate.high) == (220.0, 110.0, 440.0)
    assert a10.usd is not None
    assert a10.usd.value == pytest.approx(2.0 / 3600 / 220 * 1e6)
    assert a10.usd.low == pytest.approx(a10.usd.value / 2)
    assert (rows["NVIDIA L40S"].configuration, rows["NVIDIA L40S"].basis) == (None, shapes.ESTIMATED)
    assert rows["AMD Instinct MI300X"].basis == shapes.UNKNOWN
    assert len(rows) == 6, "shapes with the same GPU at the same price have one row"
    assert next(iter(rows)) == "NVIDIA H200", "the cheapest first"


def test_the_searchs_own_gpu_is_measured(tmp_path: Path, record: TuneRecord) -> None:
    best = measured_candidate(0, 1000.0, 20)
    rows = {row.gpu: row for row in shapes.shape_rates(Settings(root=tmp_path), record, best)}
    a10 = rows["NVIDIA A10"]
    assert (a10.configuration, a10.basis) == (best.trial.trial_id, shapes.MEASURED)
    assert a10.rate is not None
    assert a10.rate.value == pytest.approx(1000.0)


def test_a_search_of_an_older_version_has_no_rows(tmp_path: Path, record: TuneRecord) -> None:
    old = dataclasses.replace(record, chips=[])
    assert shapes.shape_rates(Settings(root=tmp_path), old) == []
    out = io.StringIO()
    shapes.show_shapes(Console(file=out, width=80), [])
    assert out.getvalue() == ""


def test_the_table_fits_eighty_columns(tmp_path: Path, record: TuneRecord) -> None:
    out = io.StringIO()
    shapes.show_shapes(Console(file=out, width=80), shapes.shape_rates(Settings(root=tmp_path), record))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("none fits" in line for line in lines)
