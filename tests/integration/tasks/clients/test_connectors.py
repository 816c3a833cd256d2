"""Test of a fleet over a connector that only its registration adds: settings, hosts, plan and a job on each host."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from invoke import Context

from bench.records.suites import suite
from remote.hosts.base import Connector, FleetRequest
from remote.hosts.command import Command
from remote.hosts.connectors import CONNECTORS, register
from remote.hosts.local import LocalHost
from remote.jobs.job import Job, JobSpec, JobState
from tasks.clients.workers import fleet_hosts, require_same_fleet, run_hosts, worker_groups
from tasks.errors import UsageError
from tasks.fleet.runner import plan_run
from tasks.settings.load import load


@dataclass(frozen=True, kw_only=True)
class DummyHost(LocalHost):
    """Host of the dummy connector."""


class DummyConnector(Connector):
    """Hosts that are neither this machine's nor a cluster's, as far as the settings know."""

    name, is_local, is_cluster, silence_sec, max_streams = "dummy", False, False, 1.0, 4

    def make_hosts(self, request: FleetRequest) -> list[DummyHost]:
        assert request.options is None
        folder = request.root / "dummy"
        return [DummyHost(name=name, workdir=str(folder / name), python=(sys.executable,)) for name in request.names]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register(DummyConnector())
    yield
    del CONNECTORS["dummy"]


def test_a_registered_connector_makes_the_hosts_of_a_fleet(context: Callable[..., Context]) -> None:
    settings = load(context(text="fleet: {kind: dummy, size: 2}"))
    hosts = fleet_hosts(settings)
    assert [(type(host), host.name) for host in hosts] == [(DummyHost, "worker-0"), (DummyHost, "worker-1")]
    run = plan_run(settings, "quick", suite("quick", "tiny", "model", "data.jsonl"), hosts, inputs={})
    assert (run.fleet_kind, run.workers) == ("dummy", ["worker-0", "worker-1"])
    require_same_fleet(settings, run)
    (group,) = worker_groups(settings, run_hosts(settings, run), run)
    for host in group.hosts:
        job = Job(group.make_agent(host), f"{host.workdir}/runs/r/1", slot=f"{host.workdir}/slot")
        job.start(JobSpec(command=Command(argv=("sh", "-c", "pwd; exit 3")), deadline_sec=60.0))
        status = job.watch(lambda _: None, interval_sec=0.05)
        assert (status.state, status.exit_code) == (JobState.ENDED, 3)
    with pytest.raises(UsageError, match=r"fleet\.kind: dummy, found local"):
        require_same_fleet(load(context(text="{}")), run)


def test_an_unknown_connector_is_refused_with_the_list(context: Callable[..., Context]) -> None:
    with pytest.raises(UsageError, match=r"fleet\.kind: expected one of local, pods, dummy, found"):
        load(context(text="fleet: {kind: slurm}"))
