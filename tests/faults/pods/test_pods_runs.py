"""A run over pods with each fault of a cluster at its start, in its middle and after its last byte.

Real kubectl against the tests' own cluster. Not covered: a real kernel's out-of-memory killer, a real network between
nodes. test_pods_outage.py has the faults that last half a minute.
"""

import time
from dataclasses import replace
from typing import Any

from remote.fleet.events import EventType
from tests.support.hosts.local_fleet import wait_for
from tests.support.pods import EVICTION_SCALE, LIMITS, PodFleet, fixtures, with_short_silence

PODS = 3
shared_fleet, pods = fixtures(PODS, toleration_scale=EVICTION_SCALE)


def test_a_pod_that_dies_costs_the_trial_it_ran_and_no_other(pods: PodFleet) -> None:
    """A pod is deleted at the start of its trial, its node lost in the middle, its memory full after the last byte."""
    faults = pods.cluster.faults

    def lose_node(pod: dict[str, Any]) -> None:
        faults.lose_node(pod["node"])
        # Its replacement cannot be scheduled until a node is back: there is one for each pod.
        pods.cluster.wait_until(lambda: pod["name"] not in str(pods.live()), "the pod is given up")
        faults.restore_node(pod["node"])

    strikes = iter(
        (lambda pod: faults.delete_pod(pod["name"], grace=0), lose_node, lambda pod: faults.oom_kill(pod["name"]))
    )
    starts = pods.strike_trials(lambda pod: next(strikes)(pod))
    assert starts["middle"] == 2
    assert starts["last"] == 1, "it was done, and its result was on the shared volume"
    assert starts["start"] <= 2


def test_a_lost_connection_costs_nothing(pods: PodFleet) -> None:
    """Streams freeze at the start of a trial, the API server is away in the middle, a kubelet after the last byte."""
    faults = pods.cluster.faults
    strikes = iter(
        (
            lambda pod: faults.end_streams(pod["node"], "freeze"),
            lambda _: faults.stop_server(seconds=1.0),
            lambda pod: faults.restart_kubelet(pod["node"], seconds=0.5),
        )
    )
    assert pods.strike_trials(lambda pod: next(strikes)(pod)) == {"start": 1, "middle": 1, "last": 1}


def test_an_operator_who_logs_in_again_finds_every_trial_unchanged(pods: PodFleet) -> None:
    """Nothing in the pods changes when a token expires: no trial is requeued or started again."""
    pods.use_credential_program()

    def are_all_back() -> bool:
        return len(pods.events_of(EventType.CREDENTIALS_REJECTED)) == len(pods.events_of(EventType.WORKER_BACK))

    def strike(pod: dict[str, Any]) -> None:
        wait_for(are_all_back, "the last strike is over")  # a worker that is already rejected sends no further event
        known_count = len(pods.events_of(EventType.CREDENTIALS_REJECTED))
        pods.cluster.break_program()

        def is_rejected() -> bool:
            # An open stream stays open; the next one is refused. Once is not enough: one that was accepted just before
            # may come after, and a list of pods that is less than 2 s old is not requested again.
            pods.cluster.faults.end_streams(pod["node"], "close-1000-without-status")
            time.sleep(0.3)
            return len(pods.events_of(EventType.CREDENTIALS_REJECTED)) > known_count

        wait_for(is_rejected, "the rejection")
        pods.restore_credentials()

    # A night is longer than any host is waited for.
    limits = replace(LIMITS, reconnect_timeout_sec=0.1)
    assert pods.strike_trials(strike, limits=limits) == {"start": 1, "middle": 1, "last": 1}
    reasons = [str(event.reason) for event in pods.events_of(EventType.CREDENTIALS_REJECTED)]
    assert all("credential program failed: log in again" in reason for reason in reasons)
    assert pods.events_of(EventType.WORKER_LOST) == []


def test_trials_wait_for_their_own_worker_while_the_others_go_on(pods: PodFleet) -> None:
    """A silent node, unnoticed: its pod says Running. And a pod whose replacement cannot start."""
    faults = pods.cluster.faults
    pods.plan("slow silent", "success-then-lingers deleted", "slow other", workers=PODS)
    hosts = with_short_silence(pods.pod_hosts())
    with pods.running(pods.pod_fleet(hosts=hosts, limits=replace(LIMITS, lost_after_sec=8.0))):
        wait_for(lambda: len(pods.bench_log_lines("started")) == PODS and pods.bench_log_lines("succeeded"), "all run")
        silent, deleted = pods.pod_of("worker-1"), pods.pod_of("worker-2")
        faults.fail_pulls("*", "timeout")
        faults.delete_pod(deleted["name"], grace=0)
        faults.silence_node(silent["node"])
        for worker in ("worker-1", "worker-2"):
            wait_for(lambda w=worker: pods.events_of(EventType.WORKER_LOST, w), "its worker counts as lost")
        pods.release_slow_trials()
        wait_for(lambda: [line["trial_id"] for line in pods.ledger_lines("ended")] == ["slow-other"], "the other ends")
        faults.repair_pulls("*")
        faults.restore_node(silent["node"])
    assert set(pods.statuses().values()) == {"SUCCEEDED"}
    assert len(pods.bench_log_lines("started")) == PODS
    (lost,) = {str(event.reason) for event in pods.events_of(EventType.WORKER_LOST, "worker-2")}
    # A real Job keeps the deleted pod until its replacement exists, and pods that failed before it.
    assert any(token in lost for token in ("Pending", "no pod has index", "being deleted", "is Evicted", "is Failed"))
