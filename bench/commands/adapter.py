"""`python -m bench adapter`: check, merge, chat with or stage the adapter of a fine-tuning.

The request is JSON on standard input. Each line of the output is a JSON object: {"say": message} during the work,
{"found": record} at the end.
"""

import importlib
import json
import sys
from pathlib import Path

from bench.data.inputs import InputError
from bench.records import TrialError, schema
from bench.records.status import ExitCode

# By action: module, class of the request, and what handles it. The modules import torch, so only one is imported.
ACTIONS = {
    "check": ("check", "CheckRequest", "Checker"),
    "merge": ("merge", "MergeRequest", "merge"),
    "chat": ("chat", "ChatRequest", "answer_conversations"),
    "ready": ("stage", "StageRequest", "stage_adapter"),
}


def handle_request(action: str, cache_dir: Path | None) -> int:
    """Handle the request on standard input and return the exit code. Raises InputError and TrialError."""
    module_name, request_class, handler_name = ACTIONS[action]
    module = importlib.import_module(f"bench.adapter.{module_name}")
    handler = getattr(module, handler_name)
    try:
        request = schema.from_json(getattr(module, request_class), json.loads(sys.stdin.read()), "request")
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError | TrialError | schema.SchemaError):
            raise InputError(str(error)) from error
        raise InputError("request: not JSON") from error
    try:
        result = handler(request, _log, cache_dir).run() if action == "check" else handler(request, _log)
    except OSError as error:
        print(f"{error.filename or 'system'}: {error.strerror}", file=sys.stderr)
        return ExitCode.NOT_WRITTEN
    print(json.dumps({"found": schema.to_json(result)}, ensure_ascii=False), flush=True)
    return 0


def _log(message: str) -> None:
    print(json.dumps({"say": message}, ensure_ascii=False), flush=True)
