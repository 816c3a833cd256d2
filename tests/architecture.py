"""Structure of the code in numbers, with bounds: `python -m tests.architecture`. Tests hold the bounds.

An import counts wherever it stands, at the top of a module or inside a function. Imports under `if TYPE_CHECKING` bind
nothing at run time and do not count. An import cycle is a set of modules that import each other. A subpackage is what
lies directly in a package: a folder with all below it, or a module. The layers of a package are the subpackages of its
longest chain of imports, a cycle counting as one; the same over modules is printed too.

The bounds on sizes only go down: a change that makes something smaller lowers its bound to what it reached. One goes up
only if an issue grants the lines, the task or the setting. `make check` fails if a bound is exceeded.
"""

import ast
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
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
    "source lines": 61_744,
    "source tokens": 426_014,
    "test lines": 56_554,
    "tasks": 35,
    "settings": 133,
    "words of documents": 48_218,
}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One line of the table. `maximum` is its bound, or None."""

    name: str
    value: int
    maximum: int | None = None

    @property
    def is_within_bound(self) -> bool:
        return self.maximum is None or self.value <= self.maximum


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def parse_sources() -> dict[Path, ast.Module]:
    return {path: parsed(path) for path in sources()}


def structure(trees: Mapping[Path, ast.Module]) -> list[Metric]:
    """Compute the numbers that have bounds, and those close to them."""
    graph = imports(trees)
    lengths = sorted(lines_of(path) for path in trees)
    functions = sorted(length for tree in trees.values() for length in function_lines(tree))
    return [
        Metric(name="import cycles", value=len(cycles_of(graph)), maximum=0),
        *(
            Metric(
                name=f"cycles of subpackages in {package}", value=len(cycles_of(subpackages(graph, package))), maximum=0
            )
            for package in PACKAGES
        ),
        *(
            Metric(name=f"layers of subpackages in {package}", value=layers(subpackages(graph, package)), maximum=7)
            for package in PACKAGES
        ),
        *(
            Metric(name=f"layers of modules in {package}", value=layers(inside_package(graph, package)))
            for package in PACKAGES
        ),
        Metric(name="files in one folder", value=max(files_per_folder(trees).values())),
        Metric(name="imports inside functions", value=sum(map(nested_imports, trees.values())), maximum=30),
        *(
            Metric(name=f"lines a file, {word}", value=value, maximum=bound)
            for word, value, bound in zip(("median", "p90", "max"), spread(lengths), (None, None, 500), strict=True)
        ),
        *(
            Metric(name=f"lines a function, {word}", value=value, maximum=bound)
            for word, value, bound in zip(("median", "p90", "max"), spread(functions), (10, None, 80), strict=True)
        ),
        Metric(name="causes hidden by `from None`", value=sum(map(hidden_causes, trees.values())), maximum=0),
    ]


def sizes() -> list[Metric]:
    """Count what the project consists of. LARGEST has the bounds."""
    tested, documents = tracked("tests/*.py"), tracked("*.md")
    values = {
        "source files": len(sources()),
        "source lines": sum(map(lines_of, sources())),
        "source tokens": sum(map(code_tokens, sources())),
        "test files": len(tested),
        "test lines": sum(map(lines_of, tested)),
        "test tokens": sum(map(code_tokens, tested)),
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


def files_per_folder(paths: Iterable[Path]) -> Counter[Path]:
    """Count the files in each folder, without `__init__.py`."""
    return Counter(path.parent for path in paths if path.name != "__init__.py")


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


def spread(values: list[int]) -> tuple[int, int, int]:
    """Return median, 90th percentile and maximum of sorted values."""
    return values[len(values) // 2], values[len(values) * 9 // 10], values[-1]


def inside_package(graph: Mapping[str, set[str]], package: str) -> dict[str, set[str]]:
    inside = {name for name in graph if name.partition(".")[0] == package}
    return {name: graph[name] & inside for name in inside}


def subpackages(graph: Mapping[str, set[str]], package: str) -> dict[str, set[str]]:
    """Map each subpackage of a package to those that it imports."""

    def subpackage(module: str) -> str:
        return ".".join(module.split(".")[:2])

    inside = {name: targets for name, targets in inside_package(graph, package).items() if name != package}
    between: dict[str, set[str]] = {subpackage(name): set() for name in inside}
    for name, targets in inside.items():
        between[subpackage(name)] |= {subpackage(target) for target in targets - {package}} - {subpackage(name)}
    return between


def cycles_of(graph: Mapping[str, set[str]]) -> list[set[str]]:
    return [component for component in strongly_connected(graph) if len(component) > 1]


def strongly_connected(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components, each after those that it reaches (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[set[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for target in graph[node]:
            if target not in order:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], order[target])
        if lowest[node] == order[node]:
            start = stack.index(node)
            components.append(set(stack[start:]))
            del stack[start:]

    for node in graph:
        if node not in order:
            visit(node)
    return components


def layers(graph: Mapping[str, set[str]]) -> int:
    """Count the components of the longest chain of imports."""
    height: dict[str, int] = {}
    for component in strongly_connected(graph):
        below = {target for node in component for target in graph[node]} - component
        height |= dict.fromkeys(component, 1 + max((height[target] for target in below), default=0))
    return max(height.values())


def main() -> int:
    trees = parse_sources()
    metrics = (*structure(trees), *sizes())
    for metric in metrics:
        bound = "" if metric.maximum is None else f"  at most {metric.maximum:,}"
        print(f"{metric.name:<32}{metric.value:>8,}{bound}")
    graph = imports(trees)
    for cycle in (*cycles_of(graph), *(cycle for name in PACKAGES for cycle in cycles_of(subpackages(graph, name)))):
        print("import cycle:", ", ".join(sorted(cycle)))
    broken = [metric for metric in metrics if not metric.is_within_bound]
    for metric in broken:
        print(f"EXCEEDED {metric.name}: {metric.value:,}, at most {metric.maximum:,}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
