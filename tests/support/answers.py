"""The answer of a command's function, delivered as text as `inv` does."""

import sys

from tasks.cli.answer import Answer, deliver


def print_answer(answer: Answer | None) -> None:
    """Print the answer as text and raise its failure."""
    deliver(answer, "", sys.stdout, as_json=False)
