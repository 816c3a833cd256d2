"""A module or a file that is named in a string, a comment or a document exists.

No linter sees these names, and a move of files breaks them silently.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import architecture
from tests.support.paths import ROOT

PACKAGES = "bench|remote|reports|tasks"
SOURCES = (
    "bench",
    "remote",
    "reports",
    "tasks",
    "image",
    "docs",
    "README.md",
    "invoke.yaml",
    "pyproject.toml",
    "Makefile",
)
# In quotes or backquotes, and what `python -m` is given.
MODULE = re.compile(rf"""(?:["'`]|-m )((?:{PACKAGES})(?:\.[A-Za-z_]\w*)+)(?=["'`\s(:,])""")
FILE = re.compile(rf"(?<![\w/.])((?:{PACKAGES}|image|docs|tests)/[\w/.-]*\w\.(?:py|yaml|json|md|svg|png|j2|js))\b")


TRACKED = [
    str(path) for path in architecture.tracked("*")
]  # asked when tests are collected: a unit test starts no process
SETTINGS = {"tasks.executor_class"}  # of Invoke


@cache
def modules() -> dict[str, str]:
    """Dotted name to path, packages included."""
    return {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in TRACKED
        if path.endswith(".py")
    }


@cache
def names_in(path: str) -> set[str]:
    """What a module's own statements define, and the fields and methods of its classes."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names


def exists(dotted: str) -> bool:
    """A module, a name in one, or a folder of a package's data."""
    parts = dotted.split(".")
    for depth in range(len(parts), 0, -1):
        path = modules().get(".".join(parts[:depth]))
        if path is not None:
            return set(parts[depth:]) <= names_in(path) or (ROOT / Path(*parts)).is_dir()
    return False


def texts() -> Iterator[tuple[str, str]]:
    for path in TRACKED:
        if path.startswith(SOURCES) and Path(path).suffix in (".py", ".md", ".yaml", ".toml", ".txt", ""):
            yield path, (ROOT / path).read_text(encoding="utf-8")


def test_every_module_named_in_text_is_there():
    missing = {
        f"{path}: {name}"
        for path, text in texts()
        for name in MODULE.findall(text)
        if not name.endswith(".py") and name not in SETTINGS and not exists(name)
    }
    assert not missing


def test_every_file_named_in_text_is_there():
    missing = {f"{path}: {name}" for path, text in texts() for name in FILE.findall(text) if not (ROOT / name).exists()}
    assert not missing


@pytest.mark.parametrize("name", ["bench.records.result", "bench.records.checksummed.Checksummed.read", "tasks"])
def test_a_module_and_a_name_in_one_are_found(name):
    assert exists(name)


@pytest.mark.parametrize("name", ["bench.result", "bench.records.result.Nothing"])
def test_what_was_moved_away_is_missed(name):
    assert not exists(name)
