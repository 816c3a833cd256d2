"""Modules and files named in strings, comments and documents exist.

Linters do not check these names, and moving files breaks them silently.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tasks.settings.sections import SETTINGS
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
# Names in quotes or backquotes, and arguments of `python -m`.
MODULE = re.compile(rf"""(?:["'`]|-m )((?:{PACKAGES})(?:\.[A-Za-z_]\w*)+)(?=["'`\s(:,])""")
FILE = re.compile(rf"(?<![\w/.])((?:{PACKAGES}|image|docs|tests)/[\w/.-]*\w\.(?:py|yaml|json|md|svg|png|j2|js))\b")


# Listed during collection, because a unit test may not start processes.
TRACKED = [str(path) for path in architecture.tracked("*")]
REMOVED = {"tasks.executor.ChainExecutor"}  # settings files of 0.1 and 0.2 name it
SETTING_NAMES = {".".join(keys) for keys in SETTINGS}


@cache
def modules() -> dict[str, str]:
    """Map dotted names of modules and packages to paths."""
    return {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in TRACKED
        if path.endswith(".py")
    }


@cache
def names_in(path: str) -> set[str]:
    """Return the names that a module defines, including fields and methods of its classes."""
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
    """Return whether this is a module, a name in one, or a package's data folder."""
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


def test_every_module_named_in_text_exists():
    missing = {
        f"{path}: {name}"
        for path, text in texts()
        for name in MODULE.findall(text)
        if not name.endswith(".py") and name not in SETTING_NAMES | REMOVED and not exists(name)
    }
    assert not missing


def test_every_file_named_in_text_exists():
    missing = {f"{path}: {name}" for path, text in texts() for name in FILE.findall(text) if not (ROOT / name).exists()}
    assert not missing
