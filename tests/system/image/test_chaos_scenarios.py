"""Short random scenarios of build and push (tests/chaos), one after the other on the shared build VM.

For deploy, bench and collect see tests/faults/pods/test_chaos_scenarios.py. Each seed has one step only. Run longer
scenarios with `python -m tests.chaos --over vm --seed 1 --minutes 30`.
"""

import random
from pathlib import Path

import pytest

from tests.chaos.over_vm import BuildVmTarget
from tests.chaos.scenario import finish, run_scenario
from tests.support.machines.build_vm import BuildVm
from tests.support.thorough import THOROUGH

SEEDS, STEPS = (1, 2, 3, 4, 5) if THOROUGH else (1, 2), 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_random_faults_during_build_and_push_cause_no_false_success_and_leave_nothing(
    build_vm: BuildVm, tmp_path: Path
) -> None:
    with build_vm.proxy() as proxy:
        world = BuildVmTarget(tmp_path, build_vm, proxy)
        for seed in SEEDS:
            run_scenario(world, random.Random(seed), go_on=iter(range(STEPS)), log=print)
        finish(world, log=print)
