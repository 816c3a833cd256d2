"""The operator's terminal: a console for tables, and a question."""

from __future__ import annotations

import sys

from rich.console import Console


def console() -> Console:
    """A console for tables of names, which are not cut where the output is no terminal."""
    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else 200)


def asks(question: str) -> bool:
    """Ask on the terminal; False where nobody can answer."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
