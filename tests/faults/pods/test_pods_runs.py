"""A run over pods, struck at its start, in its middle and after its last byte, by each fault of a cluster.

Real kubectl against the tests' own cluster. Not covered: a real kernel's out-of-memory killer, a real network between
nodes. test_pods_outage.py has the faults that last half a minute.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.records.paths import LEDGER_FILE
from remote.fleet.events import EventType
from remote.fleet.ledger import Ledger
from remote.fleet.retry_policy import LoginTimeout
from tests.support.hosts.local_fleet import kill_kubectls, wait_for
from tests.support.paths import ROOT
from tests.support.pods import EVICTION, LIMITS, PodFleet, fixtures, hasty, started, worker_of
from tests.support.thorough import only_thorough

PODS = 3
shared_fleet, pods = fixtures(PODS, toleration_scale=EVICTION)
REMEDIES = {
    "credentials expired": "log in again or renew the kubeconfig",
    "credential program fails": "the kubeconfig's credential program fails: log in again",
    "exec forbidden": "ask the cluster's administrator for that right",
    "pods forbidden": "ask the cluster's administrator for that right",
}


def moments(*rows: tuple[str, str, str]) -> pytest.MarkDecorator:
    """Which fault strikes at the start, in the middle and after the last byte. By hand: each at every moment."""
    every = [
        pytest.param((fault,) * 3, id=fault, marks=only_thorough) for fault in dict.fromkeys(itertools.chain(*rows))
    ]
    return pytest.mark.parametrize("strikes", [*(pytest.param(row, id=", ".join(row)) for row in rows), *every])


@moments(("deleted", "evicted", "out of memory"), ("node lost", "deleted", "evicted"))
def test_a_pod_that_dies_costs_the_trial_it_ran_and_no_other(pods: PodFleet, strikes: tuple[str, ...]) -> None:
    faults, next_fault = pods.cluster.faults, iter(strikes)

    def strike(pod: dict[str, Any]) -> None:
        fault = next(next_fault)
        if fault == "deleted":
            faults.delete_pod(pod["name"], grace=0)
        elif fault == "evicted":
            faults.evict(pod["name"])
        elif fault == "out of memory":
            faults.oom_kill(pod["name"])
        else:
            faults.lose_node(pod["node"])
            # Its replacement finds no place until a node is back: there is one for each pod.
            pods.cluster.wait_until(lambda: pod["name"] not in str(pods.live()), "the pod is given up")
            faults.find_node(pod["node"])

    starts = pods.struck(strike)
    assert starts["middle"] in (2, 3), "3: it was handed to the worker that was struck last"
    assert starts["last"] == 1, "it was done, and what it wrote lay on the shared volume"
    assert starts["start"] <= 2


@moments(("streams cut", "black hole", "kubelet restarted"), ("server gone", "streams frozen", "kubectl killed"))
def test_losing_the_view_costs_nothing(pods: PodFleet, strikes: tuple[str, ...]) -> None:
    faults, next_fault = pods.cluster.faults, iter(strikes)

    def strike(pod: dict[str, Any]) -> None:
        fault = next(next_fault)
        if fault == "streams cut":
            faults.end_streams(pod["node"], "close-1000-without-status")
        elif fault == "streams frozen":
            faults.end_streams(pod["node"], "freeze")
        elif fault == "server gone":
            faults.server_gone(seconds=1.0)
        elif fault == "black hole":
            faults.silence()
            faults.speak()
        elif fault == "kubelet restarted":
            faults.restart_kubelet(pod["node"], seconds=0.5)
        else:
            kill_kubectls()

    assert pods.struck(strike) == {"start": 1, "middle": 1, "last": 1}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("credentials expired", marks=only_thorough),
        "credential program fails",
        pytest.param("exec forbidden", marks=only_thorough),
        "pods forbidden",
    ],
)
def test_an_operator_who_is_let_in_again_finds_every_trial_where_it_was(pods: PodFleet, fault: str) -> None:
    """Nothing in the pods changes when a token runs out: no trial is handed on, none is begun again."""
    faults = pods.cluster.faults
    if fault == "credential program fails":
        pods.log_in_by_program()

    def all_are_back() -> bool:
        return len(pods.heard_of(EventType.SHUT_OUT)) == len(pods.heard_of(EventType.WORKER_BACK))

    def strike(pod: dict[str, Any]) -> None:
        wait_for(all_are_back, "the last strike is over")  # who is shut out already does not say so again
        known = len(pods.heard_of(EventType.SHUT_OUT))
        if fault == "credential program fails":
            pods.cluster.break_program()
        elif fault == "credentials expired":
            faults.expire_credentials()
        elif fault == "exec forbidden":
            for verb in ("get", "create"):
                faults.forbid(verb=verb, resource="pods/exec")
        else:
            faults.forbid(verb="list", resource="pods")

        def is_said() -> bool:
            # A stream that is open stays open; the next one is refused. Once is not enough: one that was let in just
            # before may come after, and a list of pods of less than 2 s ago is not asked for again.
            faults.end_streams(pod["node"], "close-1000-without-status")
            time.sleep(0.3)
            return len(pods.heard_of(EventType.SHUT_OUT)) > known

        wait_for(is_said, "it is said")
        pods.let_in()

    # A night is longer than any host is waited for. A stream that only takes its time loses no worker.
    limits = replace(LIMITS, lost_after_sec=30.0, give_up_after_sec=0.1)
    assert pods.struck(strike, limits=limits) == {"start": 1, "middle": 1, "last": 1}
    assert all(REMEDIES[fault] in str(event.reason) for event in pods.heard_of(EventType.SHUT_OUT))
    assert pods.heard_of(EventType.WORKER_LOST) == []


def test_an_operator_who_does_not_log_in_in_time_is_left_without_an_end_and_a_resumed_run_finds_what_ran_on(
    pods: PodFleet,
) -> None:
    pods.plan("slow a", "success-then-lingers b", workers=2)
    pods.log_in_by_program()
    hosts = hasty(pods.pod_hosts())[:2]
    fleet = pods.pod_fleet(hosts=hosts, limits=replace(LIMITS, log_in_within_sec=1.0))
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(fleet.run)
        wait_for(lambda: pods.noted("started", "slow-a") and pods.noted("succeeded"), "one runs and one is done")
        pods.cluster.break_program()
        for pod in pods.live():
            pods.cluster.faults.end_streams(pod["node"], "close-1000-without-status")
        with pytest.raises(
            LoginTimeout, match=r"worker-\d: .*log in again or renew the kubeconfig \(refused for 1 s\)"
        ):
            run.result()
    assert pods.ledger_lines("ended") == []
    assert pods.ledger_lines("retried") == []
    pods.say_go()
    pods.let_in()
    pods.pod_fleet(hosts=hosts).run()
    assert set(pods.ends().values()) == {"SUCCEEDED"}
    assert len(pods.noted("started")) == 2


@pytest.mark.parametrize("fault", ["image cannot be pulled", "quota used up", "no GPU left"])
def test_a_replacement_that_cannot_come_up_holds_nothing_up(pods: PodFleet, fault: str) -> None:
    faults = pods.cluster.faults
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": pods.namespace},
        "spec": {"hard": {"requests.nvidia.com/gpu": "1"}},
    }
    pods.plan("slow start", "slow middle", "success-then-lingers last", workers=PODS)
    with pods.running(pods.pod_fleet(hosts=hasty(pods.pod_hosts()))):
        wait_for(lambda: len(pods.noted("started")) == PODS and pods.noted("succeeded"), "all of them run")
        if fault == "image cannot be pulled":
            faults.fail_pulls("*", "timeout")
        elif fault == "quota used up":
            pods.cluster.apply(quota)
        begun = (*pods.noted("started", "slow-middle"), *pods.noted("succeeded"))
        doomed = [pods.pod_of(line.split()[3]) for line in begun]
        for pod in doomed:
            if fault == "no GPU left":
                faults.set_gpus(pod["node"], 0)
            faults.delete_pod(pod["name"], grace=0)
        for worker in map(worker_of, doomed):
            wait_for(lambda w=worker: pods.heard_of(EventType.WORKER_LOST, w), "its worker counts as lost")
        # The worker that is left runs what the others cannot, and takes in what was done.
        pods.say_go()
    assert set(pods.ends().values()) == {"SUCCEEDED"}
    assert pods.started_after_success() == []
    left = pods.noted("started", "slow-start")[0].split()[3]
    assert [line.split()[3] for line in pods.noted("started", "slow-middle")][1:] == [left]
    assert len(pods.noted("started", "success-then-lingers-last")) == 1
    reasons = {str(event.reason) for event in pods.heard_of(EventType.WORKER_LOST)}
    # A real Job keeps the pod that was deleted until its replacement has been made, and pods that failed before it.
    signs = ("Pending", "no pod has index", "being deleted", "is Evicted", "is Failed")
    assert any(sign in reason for sign in signs for reason in reasons), reasons


def test_a_trial_goes_back_into_the_queue_once_and_a_resumed_run_tries_again(pods: PodFleet) -> None:
    pods.plan("slow", workers=1)
    hosts, limits = hasty(pods.pod_hosts())[:1], replace(LIMITS, max_attempts=2)
    with pods.running(pods.pod_fleet(hosts=hosts, limits=limits)):
        for attempt in (1, 2):
            wait_for(lambda n=attempt: len(pods.noted("started")) == n, f"attempt {attempt}")
            pods.cluster.faults.delete_pod(pods.pod_of("worker-1")["name"], grace=0)
    assert pods.ends() == {"slow": "LOST"}
    assert "its job died with its worker" in (pods.reasons()["slow"] or "")
    with pods.running(pods.pod_fleet(hosts=hosts, limits=limits)):
        wait_for(lambda: len(pods.noted("started")) == 3, "the resumed run's attempt")
        pods.say_go()
    assert pods.ends() == {"slow": "SUCCEEDED"}
    assert pods.winner("slow") == (3, "worker-1")


def test_a_full_volume_ends_trials_with_the_reason_and_room_lets_them_go_on(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Full before a trial has a place there, when it writes its result, and after that: only the last succeeds."""
    if pytestconfig.getoption("kubeconfig"):
        pytest.skip("a volume of 4 MiB needs the tests' own cluster, and --kubeconfig names another")
    with started(tmp_path, PODS, pytestconfig, volume_size="4m") as pods:
        pods.plan("slow middle", "success-then-lingers last", "fine start", workers=2)
        hosts = hasty(pods.pod_hosts())[:2]
        with pods.running(pods.pod_fleet(hosts=hosts, limits=replace(LIMITS, max_attempts=2))):
            wait_for(lambda: pods.noted("started", "slow-middle") and pods.noted("succeeded"), "one runs, one is done")
            pods.fill_volume()
            pods.say_go()
        assert pods.ends() == {"slow-middle": "LOST", "success-then-lingers-last": "SUCCEEDED", "fine-start": "LOST"}
        for trial_id in ("slow-middle", "fine-start"):
            assert "No space left on device" in (pods.reasons()[trial_id] or "")
        pods.free_volume()
        pods.pod_fleet(hosts=hosts).run()
        assert set(pods.ends().values()) == {"SUCCEEDED"}
        assert pods.started_after_success() == []


def test_a_silent_node_gives_its_trial_to_another_pod_and_the_first_result_counts(pods: PodFleet) -> None:
    """Nobody has noticed yet that the node is gone: its pod says Running and Ready, and nothing answers."""
    pods.plan("slow", workers=2)
    hosts = hasty(pods.pod_hosts())[:2]
    with pods.running(pods.pod_fleet(hosts=hosts, limits=replace(LIMITS, lost_after_sec=8.0))):
        wait_for(lambda: pods.noted("started"), "the trial runs")
        node = pods.pod_of(pods.noted("started")[0].split()[3])["node"]
        pods.cluster.faults.silence_node(node)
        wait_for(lambda: len(pods.noted("started")) == 2, "another pod has begun it")
        pods.say_go(attempt=2)
        wait_for(lambda: pods.noted("succeeded"), "the second attempt is done")
        pods.cluster.faults.find_node(node)
    assert pods.ends() == {"slow": "SUCCEEDED"}
    assert pods.winner("slow")[0] == 2
    assert [line.split()[2] for line in pods.noted("succeeded")] == ["2"]


def test_a_new_operator_finds_what_runs_and_what_has_ended(pods: PodFleet) -> None:
    pods.plan("slow a", "success-then-lingers b", workers=2)
    argv = [sys.executable, "-B", "-m", "tests.support.pods", str(pods.folder), str(pods.cluster.kubeconfig)]
    argv += [pods.namespace, pods.label]
    with subprocess.Popen(argv, cwd=ROOT, start_new_session=True) as operator:
        try:
            wait_for(lambda: pods.noted("started", "slow-a") and pods.noted("succeeded"), "one runs and one is done")
        finally:
            os.killpg(operator.pid, signal.SIGKILL)
    assert [entry.end for entry in Ledger(pods.run_folder / LEDGER_FILE).entries.values()] == [None, None]
    pods.say_go()
    pods.pod_fleet(hosts=hasty(pods.pod_hosts())[:2]).run()
    assert set(pods.ends().values()) == {"SUCCEEDED"}
    assert len(pods.noted("started")) == 2
