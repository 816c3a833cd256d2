"""Energy: numbers checked by hand, and the places where it appears."""

import csv
import io
import json
from dataclasses import replace

import pytest

from reports.output import benchmark, data_files
from reports.read.run_folder import load
from reports.summary import sentences
from reports.summary.prices import Pricing
from reports.summary.summarize import summarize
from tests.support.reports import synthetic


@pytest.fixture
def run(tmp_path):
    """A run of two configurations with 0.16 s and 0.08 s per step at 148 W, on four workers."""
    record, seconds = synthetic.record(), {"baseline": 0.16, "optimized": 0.08}
    options = {"exact": True, "measurements": synthetic.telemetry()}
    results = [synthetic.result(plan, step_time_sec=seconds[plan.trial.name], **options) for plan in record.planned]
    synthetic.write_results(tmp_path, record, results)
    return load(tmp_path)


def without_watts(run):
    return replace(run, results=tuple(replace(result, measurements=[]) for result in run.results))


def has_energy_column(summary):
    table = benchmark.make(summary).sections[0].parts[0]
    return any(column.title == "GPU energy" for column in table.columns)


def test_joules_and_kilowatt_hours_follow_from_watts_and_time_and_are_in_files_and_a_sentence(run):
    summary = summarize(run)
    row = summary.rows[0]
    # 384 useful tokens and 4 samples in 0.16 s at 148 W.
    assert row.energy.joules_per_1000_useful_tokens.value == pytest.approx(148 * 0.16 / 0.384)
    assert row.energy.joules_per_1000_useful_tokens.over == "workers"
    assert row.energy.fine_tuning_kwh.value == pytest.approx(148 * 0.16 / 4 * 10_000 / 3.6e6)

    line = next(csv.DictReader(io.StringIO(data_files.summary_csv(summary).decode())))
    assert float(line["joules_per_1000_useful_tokens"]) == pytest.approx(148 * 0.16 / 0.384)
    assert json.loads(data_files.summary_json(summary, run))["configurations"][0]["fine_tuning_kwh"]["value"] > 0
    assert has_energy_column(summary)
    assert not has_energy_column(summarize(without_watts(run)))
    sentence = sentences.energy(summary)
    assert sentence.startswith("With optimized: 30.8 J (30.8 to 30.8) per 1,000 useful tokens.")
    assert " 0.00411 kWh" in sentence


def test_without_watts_there_is_no_energy(run):
    unsampled = summarize(without_watts(run))
    assert [row.energy for row in unsampled.rows] == [None, None]
    assert sentences.energy(unsampled) is None


def test_slow_steps_cost_money_and_energy_but_not_the_steady_state(run):
    def slowed(result):
        times = [second * (3.0 if index == 4 else 1.0) for index, second in enumerate(result.steps.step_time_sec)]
        return replace(result, steps=replace(result.steps, step_time_sec=times))

    priced = Pricing(usd_per_gpu_hour=2.0, source="a list")
    before = summarize(run, priced).rows[0]
    after = summarize(replace(run, results=tuple(map(slowed, run.results))), priced).rows[0]
    assert after.measured.steady_samples_per_sec.value == pytest.approx(before.measured.steady_samples_per_sec.value)
    longer = 17 / 15
    assert after.cost.usd_per_1000_samples.value == pytest.approx(longer * before.cost.usd_per_1000_samples.value)
    assert after.cost.fine_tunings[0].training_sec.value == pytest.approx(
        longer * before.cost.fine_tunings[0].training_sec.value
    )
    assert after.energy.fine_tuning_kwh.value == pytest.approx(longer * before.energy.fine_tuning_kwh.value)
