"""Environment variables for longer test runs.

THOROUGH=1 draws four times as many examples and also runs the tests marked `only_thorough`. EXAMPLES=10000 sets the
number of examples of the tests that call `examples`.
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
