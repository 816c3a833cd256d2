"""Short random walks over build and push (tests/chaos), one after the other over the build VM of the tests here.

Those over deploy, bench and collect: tests/faults/pods/test_chaos_scenarios.py. Left out: more than a step a seed. Longer ones by
hand: python -m tests.chaos --over vm --seed 1 --minutes 30.
"""

import random
from pathlib import Path

import pytest

from tests.chaos.over_vm import OverVm
from tests.chaos.scenario import settle, walk
from tests.support.machines.build_vm import BuildVm
from tests.support.thorough import THOROUGH

SEEDS, STEPS = (1, 2, 3, 4, 5) if THOROUGH else (1, 2), 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_whatever_befalls_build_and_push_no_success_is_false_and_nothing_is_left(
    build_vm: BuildVm, tmp_path: Path
) -> None:
    with build_vm.proxy() as proxy:
        world = OverVm(tmp_path, build_vm, proxy)
        for seed in SEEDS:
            walk(world, random.Random(seed), go_on=iter(range(STEPS)), say=print)
        settle(world, say=print)
