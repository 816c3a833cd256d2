"""Instruction/response pairs from the documentation strings of Python's standard library.

Sources are parsed with `ast`, never imported, in sorted order, so one Python version always gives the same pairs in
the same order. Lengths range from one line to several thousand characters. Standard library alone.
"""

from __future__ import annotations

import ast
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

Definition: TypeAlias = "ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef"

# Folders of the standard library whose strings are test data, generated text or other people's packages.
SKIPPED = frozenset(
    [
        "__pycache__",
        "dist-packages",
        "ensurepip",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
        "turtledemo",
    ]
)
SHORTEST_RESPONSE_CHARS = 40
ARGUMENTS_SHOWN = 6


def documentation_pairs(root: Path | None = None) -> list[tuple[str, str]]:
    """(instruction, response) for every documented module, class and function under `root` (the standard library).

    A response that occurs twice is kept at its first place.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    pairs: dict[str, str] = {}
    for relative in sorted(_sources(root)):
        for instruction, response in _documented(root / relative, _module_name(relative)):
            pairs.setdefault(response, instruction)
    return [(instruction, response) for response, instruction in pairs.items()]


def _sources(root: Path) -> Iterator[Path]:
    """Every source, relative to `root`. Packages that are installed there are not looked through."""
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in SKIPPED]
        inside = Path(folder).relative_to(root)
        yield from (inside / name for name in names if name.endswith(".py"))


def _module_name(relative: Path) -> str:
    parts = relative.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _documented(path: Path, module: str) -> Iterator[tuple[str, str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's sources are not ours to report
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # some distributions ship a template or a broken file in the library's folder; it documents nothing
    yield from _answered(f"What is the Python module {module} for?", tree)
    yield from _inside(tree, module, in_class=False)


def _inside(parent: ast.Module | Definition, place: str, *, in_class: bool) -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            name = f"{place}.{node.name}"
            yield from _answered(f"Describe the class {name}.", node)
            yield from _inside(node, name, in_class=True)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            kind = "method" if in_class else "function"
            yield from _answered(f"What does the {kind} {place}.{node.name}({_arguments(node)}) do?", node)


def _answered(instruction: str, node: ast.Module | Definition) -> Iterator[tuple[str, str]]:
    response = ast.get_docstring(node)
    if response is not None and len(response) >= SHORTEST_RESPONSE_CHARS:
        yield instruction, response


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    names = [name for name in names if name not in ("self", "cls")]
    shown = names[:ARGUMENTS_SHOWN]
    return ", ".join([*shown, "..."] if len(names) > len(shown) else shown)
