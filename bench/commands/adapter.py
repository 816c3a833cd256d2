"""`python -m bench adapter`: check, merge, ask or lay out for a server what a fine-tuning left.

The request is JSON on standard input. Each line of the answer is a JSON object: {"say": words} as it goes, {"found":
record} at the end.
"""

import importlib
import json
import sys
from pathlib import Path

from bench.data.inputs import InputError
from bench.records import TrialError, schema
from bench.records.paths import EXIT_NOT_WRITTEN

DOES = {"merge": "merge", "chat": "ask", "ready": "lay"}


def work(what: str, keep_in: Path | None) -> int:
    """Do it; the exit code. Raises InputError and TrialError."""
    module = importlib.import_module(f"bench.adapter.{what}")
    try:
        wish = schema.from_json(module.Wish, json.loads(sys.stdin.read()), "request")
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError | TrialError | schema.SchemaError):
            raise InputError(str(error)) from None
        raise InputError("request: not JSON") from None
    try:
        found = (
            module.Checker(wish, _say, keep_in).run() if what == "check" else getattr(module, DOES[what])(wish, _say)
        )
    except OSError as error:
        print(f"{error.filename or 'system'}: {error.strerror}", file=sys.stderr)
        return EXIT_NOT_WRITTEN
    print(json.dumps({"found": schema.to_json(found)}, ensure_ascii=False), flush=True)
    return 0


def _say(words: str) -> None:
    print(json.dumps({"say": words}, ensure_ascii=False), flush=True)
