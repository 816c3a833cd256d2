"""The answer of a command's function, delivered as text as `inv` does."""

import json
import sys

from tasks.cli.command_result import CommandResult, deliver


def print_answer(answer: CommandResult | None) -> None:
    """Print the answer as text and raise its failure, after a check that its data can be written as JSON."""
    json.dumps(None if answer is None else answer.data, allow_nan=False)
    deliver(answer, "", sys.stdout, as_json=False)
