"""A ledger of planned trials over pods, and faults at random, seeded: streams, API server, kubelets, nodes, pods,
credentials, rights, quotas, images, GPUs, a full volume, another operator's trial in a pod.

Real kubectl, on any cluster. Whatever the dice say: at the end exactly one end per trial, every SUCCEEDED backed by a
verified file, no trial begun again after it had succeeded. More seeds by hand:
CHAOS_SEEDS=100-139 pytest tests/faults/pods/test_pods_chaos.py. test_walk.py has the same faults beneath commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.fault_injector import FaultInjector
from tests.support.pods import EVICTION, LIMITS, PodFleet, hasty, started
from tests.support.thorough import seeds_by_hand

PODS = 3


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[PodFleet]:
    folder = tmp_path_factory.mktemp("pods")
    with started(folder, PODS, pytestconfig, volume_size="4m", toleration_scale=EVICTION) as pods:
        yield pods


@pytest.fixture
def pods(shared_fleet: PodFleet, tmp_path: Path) -> PodFleet:
    """The same workers and volume for every seed, with a run's folder of its own: what is mounted later, pods that run
    do not see."""
    shared_fleet.folder = tmp_path
    shared_fleet.wait_ready()
    return shared_fleet


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "rounds"),
    [(21, 1), *seeds_by_hand(rounds=4)],
)
def test_whatever_befalls_the_pods_every_trial_has_one_true_end(pods: PodFleet, seed: int, rounds: int) -> None:
    kinds = ("steps", "fine", "killed-once", "oom-result")
    names = [f"{kind} {seed} {number}" for number in range(rounds) for kind in kinds]
    pods.plan(*names, workers=PODS)
    # A full volume fails an attempt in a moment, and may last for some of them.
    limits = replace(LIMITS, reconnect_timeout_sec=400.0, max_attempts=100)
    fleet = pods.pod_fleet(hosts=hasty(pods.pod_hosts()), limits=limits)
    with FaultInjector(pods, seed, count=12 * rounds) as dice:
        fleet.run()
    # Which faults fall depends on how long the run takes, not on the seed alone: one of seconds has met two kinds.
    assert dice.injected, "the dice were too kind to show anything"
    for trial_id, end in pods.ends().items():
        wanted = "OUT_OF_MEMORY" if trial_id.startswith("oom") else "SUCCEEDED"
        assert end == wanted, (trial_id, pods.reasons()[trial_id], dice.injected)
    assert pods.started_after_success() == []
