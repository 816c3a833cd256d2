"""How many examples a test draws: all with CI=true in the environment, a quarter of them elsewhere; EXAMPLES=10000 says
it for those that take the number from here. CHAOS_SEEDS=100-139 adds seeds to the tests that throw faults at random;
THOROUGH=1 runs the tests marked `only_thorough` too."""

import os

import pytest

only_thorough = pytest.mark.skipif(
    os.environ.get("THOROUGH") != "1", reason="minutes of CPU, and its parts are tested apart: THOROUGH=1 runs it"
)
THOROUGH = os.environ.get("CI") == "true"


def examples(count: int) -> int:
    if "EXAMPLES" in os.environ:
        return int(os.environ["EXAMPLES"])
    return count if THOROUGH else count // 4


def seeds_by_hand(rounds: int) -> list[tuple[int, int]]:
    """Seeds that CHAOS_SEEDS asks for, each with `rounds` rounds."""
    first, _, last = os.environ.get("CHAOS_SEEDS", "").partition("-")
    return [(seed, rounds) for seed in range(int(first), int(last or first) + 1)] if first else []
