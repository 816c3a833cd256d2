"""Structure of the code in numbers, with bounds: `python -m tests.architecture`. Tests hold the bounds.

An import counts wherever it stands, at the top of a module or inside a function. Imports under `if TYPE_CHECKING` bind
nothing at run time and do not count. Neither modules nor subpackages import each other in a cycle. A subpackage is what
lies directly in a package: a folder with all below it, or a module. The layers of a package are the subpackages of its
longest chain of imports.

The bounds on sizes only go down: a change that makes something smaller lowers its bound to what it reached. One goes up
only if an issue grants the lines, the task or the setting. `make check` fails if a bound is exceeded.
"""

import ast
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tasks import ns
from tasks.settings.sections import SETTINGS
from tests.support.paths import ROOT

PACKAGES = ("tasks", "remote", "bench", "reports")
NO_CODE = {
    *(tokenize.ENCODING, tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
LARGEST = {
    "source lines": 55_184,
    "source tokens": 381_282,
    "test lines": 46_120,
    "tasks": 30,
    "settings": 126,
    "words of documents": 45_241,
}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One line of the table. `maximum` is its bound, or None."""

    name: str
    value: int
    maximum: int | None = None


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def structure() -> list[Metric]:
    """Compute the numbers about imports, files and functions. Raises CycleError for an import cycle."""
    trees = {path: parsed(path) for path in sources()}
    graph = imports(trees)
    layers(graph)  # over all packages, for its cycles
    functions = sorted(length for tree in trees.values() for length in function_lines(tree))
    values = {
        **{f"layers of subpackages in {name}": (layers(subpackages(graph, name)), 7) for name in PACKAGES},
        "imports inside functions": (sum(map(nested_imports, trees.values())), 30),
        "lines of the longest file": (max(map(lines_of, trees)), 500),
        "lines of a function, median": (functions[len(functions) // 2], 10),
        "lines of the longest function": (functions[-1], 80),
        "causes hidden by `from None`": (sum(map(hidden_causes, trees.values())), 0),
    }
    return [Metric(name=name, value=value, maximum=bound) for name, (value, bound) in values.items()]


def sizes() -> list[Metric]:
    """Count what the project consists of. LARGEST has the bounds."""
    tested, documents = tracked("tests/*.py"), tracked("*.md")
    values = {
        "source files": len(sources()),
        "source lines": sum(map(lines_of, sources())),
        "source tokens": sum(map(code_tokens, sources())),
        "test files": len(tested),
        "test lines": sum(map(lines_of, tested)),
        "tasks": len(ns.task_names),
        "settings": len(SETTINGS),
        "words of documents": sum(len((ROOT / path).read_text(encoding="utf-8").split()) for path in documents),
    }
    return [Metric(name=name, value=value, maximum=LARGEST.get(name)) for name, value in values.items()]


@cache
def tracked(pattern: str) -> tuple[Path, ...]:
    """List files that git tracks or would track, relative to the project's folder."""
    argv = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", pattern)
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return tuple(Path(line) for line in listed if (ROOT / line).is_file())


def sources() -> list[Path]:
    return [Path("tasks.py"), *(path for name in (*PACKAGES, "image") for path in tracked(f"{name}/*.py"))]


def lines_of(path: Path) -> int:
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


def code_tokens(path: Path) -> int:
    """Count the tokens of a file without comments, line ends, indentation and docstrings."""
    with (ROOT / path).open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in NO_CODE]
    docstrings = sum(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for node in statements(parsed(path))
    )
    return len(tokens) - docstrings


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports(trees: Mapping[Path, ast.Module]) -> dict[str, set[str]]:
    """Map each module to the modules of this project that it imports. `from package import name` is the module of that
    name if it exists, else the package."""
    modules = {module_name(path) for path in trees} - {"tasks.py"}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for path, tree in trees.items():
        if path == Path("tasks.py"):  # the shim that loads the package of the same name
            continue
        for node in statements(tree, run_time=True):
            for candidate in imported_names(node):
                target = candidate if candidate in modules else candidate.rpartition(".")[0]
                if target in modules and target != module_name(path):
                    graph[module_name(path)].add(target)
    return graph


def imported_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def statements(tree: ast.AST, *, run_time: bool = False) -> Iterator[ast.AST]:
    """Yield all statements; at `run_time` without those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            continue
        if (
            run_time
            and isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            continue
        yield node
        yield from statements(node, run_time=run_time)


def nested_imports(tree: ast.Module) -> int:
    """Count import statements inside functions. The first one of a command does not count: it keeps `python -m bench`
    fast. A command is a function that a call of `_add_command` names."""
    commands = set(command_names(tree))
    functions = [node for node in statements(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = [
        {node for node in statements(function) if isinstance(node, ast.Import | ast.ImportFrom)}
        for function in functions
    ]
    lazy = [nodes for function, nodes in zip(functions, inside, strict=True) if function.name in commands and nodes]
    return len(set().union(*inside)) - len(lazy)


def command_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_add_command":
            yield from (argument.id for argument in node.args if isinstance(argument, ast.Name))


def hidden_causes(tree: ast.Module) -> int:
    """Count the `raise ... from None`."""
    return sum(
        isinstance(node, ast.Raise) and isinstance(node.cause, ast.Constant) and node.cause.value is None
        for node in statements(tree)
    )


def function_lines(tree: ast.Module) -> Iterator[int]:
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.end_lineno - node.lineno + 1


def subpackages(graph: Mapping[str, set[str]], package: str) -> dict[str, set[str]]:
    """Map each subpackage of a package to those that it imports."""

    def subpackage(module: str) -> str:
        return ".".join(module.split(".")[:2])

    between: dict[str, set[str]] = {}
    for name, targets in graph.items():
        if name.startswith(f"{package}."):
            inside = {subpackage(target) for target in targets if target.startswith(f"{package}.")}
            between.setdefault(subpackage(name), set()).update(inside - {subpackage(name)})
    return between


def layers(graph: Mapping[str, set[str]]) -> int:
    """Count the nodes of the longest chain of imports. Raises CycleError, which has a cycle."""
    height: dict[str, int] = {}
    for node in TopologicalSorter(graph).static_order():
        height[node] = 1 + max((height[target] for target in graph[node]), default=0)
    return max(height.values())


def main() -> int:
    try:
        metrics = (*structure(), *sizes())
    except CycleError as error:
        print(f"EXCEEDED import cycles: 1, at most 0: {', '.join(error.args[1])}", file=sys.stderr)
        return 1
    broken = [metric for metric in metrics if metric.maximum is not None and metric.value > metric.maximum]
    for metric in metrics:
        bound = "" if metric.maximum is None else f"  at most {metric.maximum:,}"
        print(f"{metric.name:<32}{metric.value:>8,}{bound}")
    for metric in broken:
        print(f"EXCEEDED {metric.name}: {metric.value:,}, at most {metric.maximum:,}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
