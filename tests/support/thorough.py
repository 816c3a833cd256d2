"""What a test does by hand only. THOROUGH=1 draws four times as many examples and runs the tests marked `only_thorough`
too; EXAMPLES=10000 says the number for those that take it from here. CHAOS_SEEDS=100-139 adds seeds to the tests that
throw faults at random."""

import os

import pytest

THOROUGH = os.environ.get("THOROUGH") == "1"
only_thorough = pytest.mark.skipif(
    not THOROUGH, reason="minutes of CPU, and its parts are tested apart: THOROUGH=1 runs it"
)


def examples(count: int) -> int:
    if "EXAMPLES" in os.environ:
        return int(os.environ["EXAMPLES"])
    return count if THOROUGH else count // 4


def seeds_by_hand(rounds: int) -> list[tuple[int, int]]:
    """Seeds that CHAOS_SEEDS asks for, each with `rounds` rounds."""
    first, _, last = os.environ.get("CHAOS_SEEDS", "").partition("-")
    return [(seed, rounds) for seed in range(int(first), int(last or first) + 1)] if first else []
