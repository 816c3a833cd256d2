"""Tests of a fleet over a connector that only its registration adds: settings, hosts, plan and trials."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from invoke import Context

from bench.records.trial import suite
from remote.hosts.connectors import CONNECTORS
from remote.hosts.host_protocol import Connector, FleetRequest
from remote.hosts.local import LocalHost
from tasks.clients.workers import fleet_hosts, require_same_fleet, run_hosts, worker_groups
from tasks.errors import UsageError
from tasks.fleet.plan import new_record, plan_trials
from tasks.settings.layers import load
from tests.support.hosts.local_fleet import LocalFleet


@dataclass(frozen=True, kw_only=True)
class DummyHost(LocalHost):
    """Host of the dummy connector."""


def make_hosts(request: FleetRequest) -> list[DummyHost]:
    assert request.options is None
    folder = request.root / "dummy"
    return [DummyHost(name=name, workdir=str(folder / name), python=(sys.executable,)) for name in request.names]


# Its hosts are neither this machine's nor a cluster's, as far as the settings know.
DUMMY = Connector(name="dummy", is_local=False, is_cluster=False, silence_sec=1.0, max_streams=4, make_hosts=make_hosts)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONNECTORS, "dummy", DUMMY)


def test_trials_run_over_the_hosts_of_a_registered_connector(
    context: Callable[..., Context], local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(context(text="fleet: {kind: dummy, size: 3}"))
    hosts = fleet_hosts(settings)
    assert [(type(host), host.name) for host in hosts] == [(DummyHost, f"worker-{index}") for index in range(3)]
    names = [host.name for host in hosts]
    planned = plan_trials(suite("quick", "tiny", "model", "data.jsonl"), names, 1, is_over_pods=False)
    run = new_record(settings, "quick", planned, names, inputs={})
    assert (run.fleet_kind, run.workers) == ("dummy", [host.name for host in hosts])
    assert not run.is_on_one_machine
    monkeypatch.setitem(CONNECTORS, "dummy", replace(DUMMY, is_local=True))
    assert new_record(settings, "quick", planned, names, inputs={}).is_on_one_machine
    ((hosts, make_agent, _),) = worker_groups(run, run_hosts(settings, run))
    local.plan("fine one", "fine two", "fine three")
    local.fleet(hosts[1:], make_agent=make_agent).run()
    assert set(local.statuses().values()) == {"SUCCEEDED"}
    require_same_fleet(settings, run)
    with pytest.raises(UsageError, match=r"fleet\.kind: dummy, found local"):
        require_same_fleet(load(context(text="{}")), run)


def test_an_unknown_connector_is_refused_with_the_list(context: Callable[..., Context]) -> None:
    with pytest.raises(UsageError, match=r"fleet\.kind: expected one of local, pods, dummy, found"):
        load(context(text="fleet: {kind: slurm}"))
