"""A ledger of planned trials over pods, and faults at random, seeded: streams, API server, kubelets, nodes, pods,
credentials, rights, images, GPUs, a full volume, another operator's trial in a pod.

Real kubectl. With any faults, every trial has exactly one end, every SUCCEEDED has a verified file, and
no trial starts again after it has succeeded. More seeds by hand: CHAOS_SEEDS=100-139 pytest
tests/faults/pods/test_pods_chaos.py. test_chaos_scenarios.py always injects the same faults into commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.fault_injector import FaultInjector
from tests.support.hosts.local_fleet import wait_for
from tests.support.pods import EVICTION_SCALE, LIMITS, PodFleet, running_pod_fleet, with_short_silence
from tests.support.thorough import chaos_seeds, only_thorough

PODS = 3


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodFleet]:
    folder = tmp_path_factory.mktemp("pods")
    with running_pod_fleet(folder, PODS, volume_size="4m", toleration_scale=EVICTION_SCALE) as pods:
        yield pods


@pytest.fixture
def pods(shared_fleet: PodFleet, tmp_path: Path) -> PodFleet:
    """The same workers and volume for every seed, with a run's folder of its own: what is mounted later, pods that run
    do not see."""
    shared_fleet.folder = tmp_path
    shared_fleet.wait_ready()
    return shared_fleet


def test_a_full_volume_ends_trials_with_the_reason_and_a_resume_with_space_runs_them(pods: PodFleet) -> None:
    """Fill the volume before a trial has a folder, before its result, and after its result: only the last succeeds."""
    pods.plan("slow middle", "success-then-lingers last", "fine start", workers=2)
    hosts = with_short_silence(pods.pod_hosts())[:2]
    with pods.running(pods.pod_fleet(hosts=hosts, limits=replace(LIMITS, max_attempts=2))):
        wait_for(
            lambda: (
                pods.bench_log_lines("started", "slow-middle")
                and pods.bench_log_lines("succeeded", "success-then-lingers-last")
            ),
            "one runs, one is done",
        )
        pods.fill_volume()
        pods.release_slow_trials()
    assert pods.statuses() == {
        "slow-middle": "LOST",
        "success-then-lingers-last": "SUCCEEDED",
        "fine-start": "LOST",
    }
    for trial_id in ("slow-middle", "fine-start"):
        assert "No space left on device" in (pods.reasons()[trial_id] or "")
    pods.free_volume()
    pods.pod_fleet(hosts=hosts).run()
    assert set(pods.statuses().values()) == {"SUCCEEDED"}
    assert pods.started_after_success() == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "rounds"),
    [pytest.param(21, 1, marks=only_thorough), *chaos_seeds(rounds=4)],
)
def test_random_faults_of_pods_leave_every_trial_with_one_correct_end(pods: PodFleet, seed: int, rounds: int) -> None:
    kinds = ("steps", "fine", "killed-once", "oom-result")
    names = [f"{kind} {seed} {number}" for number in range(rounds) for kind in kinds]
    pods.plan(*names, workers=PODS)
    # A full volume fails an attempt in a moment, and may last for some of them.
    limits = replace(LIMITS, reconnect_timeout_sec=400.0, max_attempts=100)
    fleet = pods.pod_fleet(hosts=with_short_silence(pods.pod_hosts()), limits=limits)
    with FaultInjector(pods, seed, count=12 * rounds) as injector:
        fleet.run()
    # The injected faults depend on the run's duration, not only on the seed: a run of seconds had two kinds.
    assert injector.injected, "no fault was injected"
    for trial_id, end in pods.statuses().items():
        expected = "OUT_OF_MEMORY" if trial_id.startswith("oom") else "SUCCEEDED"
        assert end == expected, (trial_id, pods.reasons()[trial_id], injector.injected)
    assert pods.started_after_success() == []
