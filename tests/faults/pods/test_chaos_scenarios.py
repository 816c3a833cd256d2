"""Short random walks over deploy, bench and collect (tests/chaos), one after the other over the same project.

Those over build and push: tests/system/image/test_chaos_scenarios.py. Left out: more than two steps a seed, trials with torch,
GPUs. Longer ones by hand: python -m tests.chaos --seed 1 --minutes 30.
"""

import random
from pathlib import Path

import pytest

from tests.chaos import over_pods
from tests.chaos.scenario import finish, run_scenario
from tests.support.kubernetes import unavailable
from tests.support.thorough import THOROUGH

SEEDS, STEPS = (1, 2, 3, 4, 5) if THOROUGH else (1, 2), 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_whatever_befalls_the_commands_nothing_is_lost_and_no_success_is_false(tmp_path: Path) -> None:
    if why := unavailable():
        pytest.skip(why)
    with over_pods.running(tmp_path) as world:
        for seed in SEEDS:
            run_scenario(world, random.Random(seed), go_on=iter(range(STEPS)), log=print)
        finish(world, log=print)
