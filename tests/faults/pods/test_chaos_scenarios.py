"""Short random scenarios of deploy, bench and collect (tests/chaos), one after the other on the same project.

Not covered: more than two steps per seed, trials with torch, GPUs. Longer scenarios by hand: python -m tests.chaos
--seed 1 --minutes 30.
"""

from pathlib import Path

import pytest

from tests.chaos.scenario import run_scenario, running
from tests.support.kubernetes import unavailable_reason
from tests.support.thorough import THOROUGH

SEEDS, STEPS = (1, 2, 3, 4, 5) if THOROUGH else (1,), 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_random_faults_of_commands_lose_nothing_and_cause_no_false_success(tmp_path: Path) -> None:
    if reason := unavailable_reason():
        pytest.skip(reason)
    with running(tmp_path) as target:
        for seed in SEEDS:
            run_scenario(target, seed, STEPS)
        target.finish()
