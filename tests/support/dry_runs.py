"""A dry run of a command with --json: its plan, and the proof that it changed no file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from tasks.cli.flags import Command


def plan_of(
    command: Command, context: Context, folder: Path, capsys: pytest.CaptureFixture[str], /, **typed: Any
) -> dict[str, Any]:
    """Return the plan that the command prints as JSON, and nothing else; no file below `folder` has changed."""
    before = _contents(folder)
    capsys.readouterr()
    positional = [typed.pop(name) for name, flag in command.flags.items() if flag.is_positional and name in typed]
    command(context, *positional, dry_run=True, json=True, **typed)
    assert _contents(folder) == before
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (document.pop("kind"), document.pop("schema_version")) == (f"{command.full_name}.plan", 2)
    assert document
    return document


def _contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def refuse(name: str) -> Callable[..., Any]:
    """Return a function that fails the test: a dry run must not call it."""

    def fail(*_: Any, **__: Any) -> Any:
        pytest.fail(f"a dry run called {name}")

    return fail
