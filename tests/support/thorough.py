"""Environment variables for longer test runs.

THOROUGH=1 draws four times as many examples and also runs the tests marked `only_thorough`. EXAMPLES=10000 sets the
number of examples of the tests that call `examples`. CHAOS_SEEDS=100-139 adds seeds to the tests with random faults.
"""

import os

import pytest

THOROUGH = os.environ.get("THOROUGH") == "1"
only_thorough = pytest.mark.skipif(
    not THOROUGH, reason="takes minutes of CPU, and its parts have tests of their own: THOROUGH=1 runs it"
)


def examples(count: int) -> int:
    if "EXAMPLES" in os.environ:
        return int(os.environ["EXAMPLES"])
    return count if THOROUGH else count // 4


def chaos_seeds(rounds: int) -> list[tuple[int, int]]:
    """Return the seeds of CHAOS_SEEDS, each with `rounds` rounds."""
    first, _, last = os.environ.get("CHAOS_SEEDS", "").partition("-")
    return [(seed, rounds) for seed in range(int(first), int(last or first) + 1)] if first else []
