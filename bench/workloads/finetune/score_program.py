"""The process that scores answers by a user's Python file: `python -I score_program.py FILE`.

Reads a JSON line per row, `{"row": ..., "prompt": ..., "answer": ..., "expected": ...}`, and writes one:
`{"row": ..., "score": ...}`, or `{"row": ..., "fault": ..., "detail": ...}` with a value of ScoreFault. What the
user's code prints goes nowhere. Imports nothing of ours, so that it runs apart from our environment.
"""

import contextlib
import ctypes
import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FUNCTION = "score"
MAX_DETAIL_CHARS = 120
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
Reply = dict[str, Any]
Scorer = Callable[[str, str, str], Reply]


def by_file(path: str) -> Scorer:
    """Return a scorer that calls the function `score(prompt, answer, expected)` of the user's file."""
    try:
        function = runpy.run_path(path).get(FUNCTION)
        failure = "" if callable(function) else f"it has no function {FUNCTION}(prompt, answer, expected)"
    except Exception as error:  # noqa: BLE001 - the reply to each row names it
        function, failure = None, _describe(error)

    def scorer(prompt: str, answer: str, expected: str) -> Reply:
        if function is None or failure:
            return {"fault": "raised", "detail": failure}
        try:
            value = function(prompt, answer, expected)
        except Exception as error:  # noqa: BLE001 - the reply names it
            return {"fault": "raised", "detail": _describe(error)}
        if isinstance(value, (bool, int, float)) and 0 <= value <= 1:
            return {"score": float(value)}
        return {"fault": "not_a_number", "detail": repr(value)[:MAX_DETAIL_CHARS]}

    return scorer


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_DETAIL_CHARS]


def main(path: str) -> None:
    """Answer the lines of standard input until its end."""
    with os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1) as replies:
        nothing = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nothing, stream)
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        with contextlib.suppress(OSError):  # if memory runs out, this process ends first
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        scorer = by_file(path)
        for line in sys.stdin:
            row = json.loads(line)
            reply = scorer(row["prompt"], row["answer"], row["expected"])
            replies.write(json.dumps({"row": row["row"], **reply}) + "\n")
        os._exit(0)  # whatever the user's code has started


if __name__ == "__main__":
    main(sys.argv[1])
