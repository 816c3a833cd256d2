"""Faults that last as long as they do in life, against the patience that `inv bench` has: nothing of it is shortened.

One API server that is gone for 30 s, one node that is NotReady while its pods say Running: each strikes a run before
its job has begun, in its middle, and after its last byte. Real kubectl against the tests' own cluster. Most of the time
here is spent waiting, beside other tests.
"""

import contextlib
import time
from pathlib import Path

import pytest

from remote.fleet.events import EventType
from remote.fleet.retry_policy import RetryLimits
from remote.hosts.host import HostError
from tasks.fleet.runner import ONE_TRY_SEC
from tasks.settings.schema import FleetSection
from tests.support.hosts.local_fleet import wait_for
from tests.support.kubernetes.real_cluster import GivenCluster
from tests.support.pods import PodFleet, fixtures

PODS = 3
OUTAGE_SEC = 30.0
shared_fleet, pods = fixtures(PODS)


def shipped() -> RetryLimits:
    """The limits that `inv bench` makes from the settings as they are shipped."""
    fleet = FleetSection()
    return RetryLimits(
        lost_after_sec=fleet.lost_after_sec - ONE_TRY_SEC["pods"],
        give_up_after_sec=fleet.give_up_after_sec,
        max_attempts=fleet.max_attempts,
    )


def test_an_api_server_that_is_gone_for_30_s_costs_no_trial_and_none_is_begun_twice(
    pods: PodFleet, tmp_path: Path
) -> None:
    pods.plan("slow middle", "success-then-lingers last", workers=2)
    (tmp_path / "late").mkdir()
    late = PodFleet(tmp_path / "late", pods.cluster, PODS)
    late.plan("fine start", workers=1)
    hosts = pods.pod_hosts()
    limits = shipped()
    fleet = pods.pod_fleet(hosts=hosts[:2], limits=limits)
    with pods.running(fleet):
        wait_for(lambda: pods.noted("started", "slow-middle") and pods.noted("succeeded"), "one runs, one is done")
        went = time.monotonic()
        pods.cluster.faults.server_gone()
        # The third worker's job is to begin while nobody can be reached, the other two's to end.
        with late.running(late.pod_fleet(hosts=late.pod_hosts()[2:], limits=limits)):
            wait_for(lambda: late.ledger_lines("started"), "an attempt is written down")
            assert not late.noted("started")
            pods.say_go()
            # The one that lingers notes its success a second time when it is told to go.
            wait_for(lambda: len({line.split()[1] for line in pods.noted("succeeded")}) == 2, "the trials go on")
            wait_for(lambda: time.monotonic() >= went + OUTAGE_SEC, "the outage's end")
            assert pods.ledger_lines("ended") == []
            pods.cluster.faults.server_back()
    for run, count in ((pods, 2), (late, 1)):
        assert len(run.ends()) == count
        assert set(run.ends().values()) == {"SUCCEEDED"}
        assert run.ledger_lines("retried") == []
        assert len(run.noted("started")) == count
        assert run.heard_of(EventType.WORKER_LOST) == []


def test_a_node_that_is_not_ready_for_a_while_costs_nothing_while_its_pods_live_on(pods: PodFleet) -> None:
    """Its pods say Running all the time; Kubernetes gives them up after 30 s (their tolerations), which do not pass."""
    if isinstance(pods.cluster, GivenCluster):
        pytest.skip("a real node is NotReady after 50 s of silence, which three trials of this test do not outlive")
    faults = pods.cluster.faults

    def strike(pod: dict[str, object]) -> None:
        faults.lose_node(str(pod["node"]), processes_die=False)
        shown = pods.cluster.pod(str(pod["name"])) or {}
        assert shown["status"]["phase"] == "Running"

        def seen() -> bool:
            pods.pods.invalidate()
            with contextlib.suppress(HostError):
                return any(one.name == pod["name"] and not one.is_ready for one in pods.pods.all())
            return False

        pods.cluster.wait_until(seen, "its pod is not Ready")
        faults.find_node(str(pod["node"]))

    assert pods.struck(strike, limits=shipped()) == {"start": 1, "middle": 1, "last": 1}
    assert pods.heard_of(EventType.WORKER_LOST) == []


def test_a_black_hole_of_20_s_is_borne_by_a_stream_that_is_given_up_after_15(pods: PodFleet) -> None:
    pods.plan("slow", workers=1)
    heard_of_it = pods.pod_hosts()[:1]
    with pods.running(pods.pod_fleet(hosts=heard_of_it, limits=shipped())):
        wait_for(lambda: pods.heard_of(EventType.PROGRESS), "it is followed")
        pods.cluster.faults.silence()
        pods.say_go()
        wait_for(lambda: pods.noted("succeeded"), "it ends unseen")
        known, until = len(pods.heard), time.monotonic() + 20.0
        wait_for(lambda: time.monotonic() > until, "20 s have passed")
        assert pods.heard[known:] == []
        pods.cluster.faults.speak()
    assert pods.ends() == {"slow": "SUCCEEDED"}
    assert pods.ledger_lines("retried") == []
    assert pods.heard_of(EventType.WORKER_LOST) == []
