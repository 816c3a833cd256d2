"""Test of the address of each worker's metrics."""

import json
from pathlib import Path

from bench.records.paths import METRICS_VARIABLE
from bench.records.run import PlannedTrial
from remote.hosts.local import LocalHost
from tasks.clients.workers import launcher, metrics_environment
from tasks.settings.load import Settings
from tasks.settings.schema import CostSection, FleetSection, MetricsSection


def test_workers_on_this_machine_have_a_port_each_and_pods_an_address_each(make_trial, tmp_path: Path) -> None:
    assert metrics_environment(Settings(root=tmp_path)) == {}
    cost = CostSection(price_usd_per_gpu_hour=2.0, price_source="a list")
    settings = Settings(root=tmp_path, metrics=MetricsSection(port=9400), cost=cost, fleet=FleetSection(size=2))
    addresses = {name: json.loads(text) for name, text in metrics_environment(settings).items()}
    assert [address["port"] for address in addresses.values()] == [9400, 9401]
    assert {address["host"] for address in addresses.values()} == {"127.0.0.1"}, "reachable only from this machine"
    host = LocalHost(name="worker-1", workdir=str(tmp_path))
    planned = PlannedTrial(trial_id="t", trial=make_trial(), worker="worker-1")
    command = launcher(settings, "run")(host, planned, 1, "/jobs/1")
    assert json.loads(command.environment[METRICS_VARIABLE]) == addresses["worker-1"]
    pods = settings.model_copy(update={"fleet": FleetSection(kind="pods", size=2)})
    addresses = {name: json.loads(text) for name, text in metrics_environment(pods).items()}
    expected = {"host": "", "port": 9400, "usd_per_gpu_hour": 2.0}
    assert addresses == {"worker-0": expected, "worker-1": expected}
