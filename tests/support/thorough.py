"""How many examples a test draws: all with CI=true in the environment, a quarter of them elsewhere."""

import os

THOROUGH = os.environ.get("CI") == "true"


def examples(count: int) -> int:
    return count if THOROUGH else count // 4
