"""Which address each worker is told for its metrics."""

import json
from pathlib import Path

from bench.records.paths import METRICS_VARIABLE
from bench.records.run import PlannedTrial
from remote.hosts.local import LocalHost
from tasks.clients.workers import launcher, metrics_of
from tasks.settings.load import Settings
from tasks.settings.schema import CostSection, FleetSection, MetricsSection


def test_workers_on_this_machine_have_a_port_each_and_pods_an_address_each(make_trial, tmp_path: Path) -> None:
    assert metrics_of(Settings(root=tmp_path)) == {}
    cost = CostSection(price_usd_per_gpu_hour=2.0, price_source="a list")
    settings = Settings(root=tmp_path, metrics=MetricsSection(port=9400), cost=cost, fleet=FleetSection(size=2))
    told = {name: json.loads(text) for name, text in metrics_of(settings).items()}
    assert [one["port"] for one in told.values()] == [9400, 9401]
    assert {one["host"] for one in told.values()} == {"127.0.0.1"}, "only this machine may ask"
    host = LocalHost(name="worker-1", workdir=str(tmp_path))
    planned = PlannedTrial(trial_id="t", trial=make_trial(), worker="worker-1")
    command = launcher(settings, "run")(host, planned, 1, "/jobs/1")
    assert json.loads(command.environment[METRICS_VARIABLE]) == told["worker-1"]
    pods = settings.model_copy(update={"fleet": FleetSection(kind="pods", size=2)})
    told = {name: json.loads(text) for name, text in metrics_of(pods).items()}
    assert {(one["host"], one["port"], one["usd_per_gpu_hour"]) for one in told.values()} == {("", 9400, 2.0)}
