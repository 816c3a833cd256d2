"""Faults of realistic duration, with the default timeouts of `inv bench`.

An API server that is silent until the streams are given up, and then down, for 24 s together; a node that is NotReady
while its pods say Running. Each affects a run before its job has started, in its middle, and after its last byte. Real
kubectl against the tests' own cluster. These tests spend most of their time waiting.
"""

import contextlib
import time
from dataclasses import replace
from pathlib import Path

from remote.fleet.events import EventType
from remote.fleet.retry_policy import RetryLimits
from remote.hosts.host_protocol import HostError
from remote.hosts.pods.host import SILENCE_SEC
from tasks.settings.sections import FleetSection
from tests.support.hosts.local_fleet import wait_for
from tests.support.pods import PodFleet, fixtures

PODS = 3
BLACK_HOLE_SEC, OUTAGE_SEC = SILENCE_SEC + 3.0, SILENCE_SEC + 9.0
shared_fleet, pods = fixtures(PODS)


def default_limits() -> RetryLimits:
    """Return the limits of `inv bench` with the default settings."""
    fleet = FleetSection()
    return RetryLimits(
        lost_after_sec=fleet.lost_after_sec - SILENCE_SEC,
        reconnect_timeout_sec=fleet.reconnect_timeout_sec,
        max_attempts=fleet.max_attempts,
    )


def test_an_api_server_that_is_silent_and_then_down_costs_no_trial_and_none_starts_twice(
    pods: PodFleet, tmp_path: Path
) -> None:
    pods.plan("slow middle", "success-then-lingers last", workers=2)
    (tmp_path / "late").mkdir()
    late = PodFleet(tmp_path / "late", pods.cluster, PODS)
    late.plan("fine start", workers=1)
    hosts = pods.pod_hosts()
    limits = default_limits()
    fleet = pods.pod_fleet(hosts=hosts[:2], limits=limits)
    with pods.running(fleet):
        wait_for(
            lambda: pods.bench_log_lines("started", "slow-middle") and pods.bench_log_lines("succeeded"),
            "one runs, one is done",
        )
        stopped_at = time.monotonic()
        pods.cluster.faults.silence_server()
        time.sleep(1.0)  # for what was on its way
        known_events = len(pods.fleet_events)
        wait_for(lambda: time.monotonic() > stopped_at + BLACK_HOLE_SEC, "the streams are given up")
        assert pods.fleet_events[known_events:] == []
        pods.cluster.faults.stop_server()
        pods.cluster.faults.clear()  # it refuses connections now
        # The third worker's job must start while no host is reachable, and those of the other two end.
        third = replace(late.pod_hosts()[2], name="worker-1")
        with late.running(late.pod_fleet(hosts=[third], limits=limits)):
            wait_for(lambda: late.ledger_lines("started"), "an attempt is written down")
            assert not late.bench_log_lines("started")
            pods.release_slow_trials()
            # The trial that lingers logs its success a second time when it is released.
            wait_for(
                lambda: len({line.split()[1] for line in pods.bench_log_lines("succeeded")}) == 2, "the trials go on"
            )
            wait_for(lambda: time.monotonic() >= stopped_at + OUTAGE_SEC, "the outage's end")
            assert pods.ledger_lines("ended") == []
            pods.cluster.faults.start_server()
    for run, count in ((pods, 2), (late, 1)):
        assert len(run.statuses()) == count
        assert set(run.statuses().values()) == {"SUCCEEDED"}
        assert run.ledger_lines("retried") == []
        assert len(run.bench_log_lines("started")) == count
        assert run.events_of(EventType.WORKER_LOST) == []


def test_a_node_that_is_not_ready_for_a_while_costs_nothing_while_its_pods_live(pods: PodFleet) -> None:
    """Its pods say Running all the time; Kubernetes evicts them only after 30 s (their tolerations)."""
    faults = pods.cluster.faults

    def strike(pod: dict[str, object]) -> None:
        faults.lose_node(str(pod["node"]), processes_die=False)
        pod_object = pods.cluster.pod(str(pod["name"])) or {}
        assert pod_object["status"]["phase"] == "Running"

        def is_not_ready() -> bool:
            pods.pods.invalidate()
            with contextlib.suppress(HostError):
                return any(entry.name == pod["name"] and not entry.is_ready for entry in pods.pods.all())
            return False

        pods.cluster.wait_until(is_not_ready, "its pod is not Ready")
        faults.restore_node(str(pod["node"]))

    assert pods.strike_trials(strike, limits=default_limits()) == {"start": 1, "middle": 1, "last": 1}
    assert pods.events_of(EventType.WORKER_LOST) == []
