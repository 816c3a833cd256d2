"""How many examples a test draws: all with CI=true in the environment, a quarter of them elsewhere; EXAMPLES=10000 says
it for those that take the number from here."""

import os

THOROUGH = os.environ.get("CI") == "true"


def examples(count: int) -> int:
    if "EXAMPLES" in os.environ:
        return int(os.environ["EXAMPLES"])
    return count if THOROUGH else count // 4
