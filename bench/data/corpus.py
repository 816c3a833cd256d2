"""Instruction/response pairs from the documentation strings of Python's standard library.

Sources are parsed with `ast`, never imported, in sorted order, so one Python version always gives the same pairs in
the same order. Lengths range from one line to several thousand characters. Only the standard library.
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

# Folders of the standard library with test data, generated text or third-party packages.
SKIPPED_FOLDERS = frozenset(
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
MIN_RESPONSE_CHARS = 40
MAX_ARGUMENTS = 6


def documentation_pairs(root: Path | None = None) -> list[tuple[str, str]]:
    """List (instruction, response) of every documented module, class and function under `root` (the standard library).

    A repeated response is kept once, at its first occurrence.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    pairs: dict[str, str] = {}
    for relative in sorted(_source_files(root)):
        for instruction, response in _pairs_in_file(root / relative, _module_name(relative)):
            pairs.setdefault(response, instruction)
    return [(instruction, response) for response, instruction in pairs.items()]


def _source_files(root: Path) -> Iterator[Path]:
    """Yield every source file, relative to `root`, without those of installed packages."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        relative = Path(folder).relative_to(root)
        yield from (relative / name for name in names if name.endswith(".py"))


def _module_name(relative: Path) -> str:
    parts = relative.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _pairs_in_file(path: Path, module: str) -> Iterator[tuple[str, str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in third-party sources
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # some distributions ship a template or a broken file in the library's folder
    yield from _pair(f"What is the Python module {module} for?", tree)
    yield from _pairs_in_members(tree, module, in_class=False)


def _pairs_in_members(parent: ast.Module | Definition, prefix: str, *, in_class: bool) -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            name = f"{prefix}.{node.name}"
            yield from _pair(f"Describe the class {name}.", node)
            yield from _pairs_in_members(node, name, in_class=True)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            kind = "method" if in_class else "function"
            yield from _pair(f"What does the {kind} {prefix}.{node.name}({_arguments(node)}) do?", node)


def _pair(instruction: str, node: ast.Module | Definition) -> Iterator[tuple[str, str]]:
    response = ast.get_docstring(node)
    if response is not None and len(response) >= MIN_RESPONSE_CHARS:
        yield instruction, response


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    names = [name for name in names if name not in ("self", "cls")]
    listed = names[:MAX_ARGUMENTS]
    return ", ".join([*listed, "..."] if len(names) > len(listed) else listed)
