"""`python -m tests.architecture`: the house in numbers, each beside its bound. tests/unit/test_architecture.py holds the bounds.

An import counts wherever it stands, at the top of a module or inside a function. Imports under `if TYPE_CHECKING` bind
nothing at run time and do not count. A circle is a set of modules that import each other. A room is what lies directly
in a package: a folder with all below it, or a module. The floors of a package are the rooms of its longest chain of
imports, a circle counting as one; the same over modules is printed beside it.
"""

import ast
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

PACKAGES = ("tasks", "remote", "bench", "reports")


@dataclass(frozen=True, kw_only=True)
class Number:
    """One line of the table. `most` is the bound; None where there is none."""

    name: str
    value: int
    most: int | None = None

    @property
    def holds(self) -> bool:
        return self.most is None or self.value <= self.most


def numbers() -> list[Number]:
    """The whole table, from the files that git tracks."""
    trees = {path: ast.parse((ROOT / path).read_text(encoding="utf-8")) for path in sources()}
    graph = imports(trees)
    lengths = sorted(lines_of(path) for path in trees)
    functions = sorted(length for tree in trees.values() for length in function_lines(tree))
    return [
        Number(name="import circles", value=len(circles_of(graph)), most=0),
        *(
            Number(name=f"circles of rooms in {package}", value=len(circles_of(rooms(graph, package))), most=0)
            for package in PACKAGES
        ),
        *(
            Number(name=f"floors of rooms in {package}", value=floors(rooms(graph, package)), most=7)
            for package in PACKAGES
        ),
        *(Number(name=f"floors of modules in {package}", value=floors(within(graph, package))) for package in PACKAGES),
        Number(name="files in one folder", value=max(crowd(trees).values()), most=12),
        Number(name="imports inside functions", value=sum(map(nested_imports, trees.values())), most=30),
        *(
            Number(name=f"lines a file, {word}", value=value, most=most)
            for word, value, most in zip(("median", "p90", "max"), spread(lengths), (None, 250, None), strict=True)
        ),
        *(
            Number(name=f"lines a function, {word}", value=value)
            for word, value in zip(("median", "p90", "max"), spread(functions), strict=True)
        ),
        Number(name="source files", value=len(trees)),
        Number(name="source lines", value=sum(lengths)),
        Number(name="test lines", value=sum(map(lines_of, tracked("tests/*.py")))),
    ]


@cache
def tracked(pattern: str) -> tuple[Path, ...]:
    """Files that git tracks or would track, relative to the project's folder."""
    argv = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", pattern)
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return tuple(Path(line) for line in listed if (ROOT / line).is_file())


def sources() -> list[Path]:
    return [Path("tasks.py"), *(path for name in (*PACKAGES, "image") for path in tracked(f"{name}/*.py"))]


def lines_of(path: Path) -> int:
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


def crowd(paths: Iterable[Path]) -> Counter[Path]:
    """Files in each folder, `__init__.py` aside."""
    return Counter(path.parent for path in paths if path.name != "__init__.py")


def name_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports(trees: Mapping[Path, ast.Module]) -> dict[str, set[str]]:
    """Each module, and the modules of ours that it imports. `from package import name` is the module of that name, if
    there is one; else the package."""
    modules = {name_of(path) for path in trees} - {"tasks.py"}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for path, tree in trees.items():
        if path == Path("tasks.py"):  # the shim that loads the package of the same name
            continue
        for node in statements(tree, run_time=True):
            for candidate in named(node):
                target = candidate if candidate in modules else candidate.rpartition(".")[0]
                if target in modules and target != name_of(path):
                    graph[name_of(path)].add(target)
    return graph


def named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def statements(tree: ast.AST, *, run_time: bool = False) -> Iterator[ast.AST]:
    """All statements, a tenth of all nodes; at `run_time` but those under `if TYPE_CHECKING`."""
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
    """Import statements inside functions. The first one of a command does not count: it keeps `inv --list` and
    `python -m bench` fast. A command is a `@task`, or what argparse is given as `act=`."""
    commands = set(named_as_commands(tree))
    functions = [node for node in statements(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    within = [
        {node for node in statements(function) if isinstance(node, ast.Import | ast.ImportFrom)}
        for function in functions
    ]
    lazy = [found for function, found in zip(functions, within, strict=True) if function.name in commands and found]
    return len(set().union(*within)) - len(lazy)


def named_as_commands(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            ast.unparse(one).startswith("task") for one in node.decorator_list
        ):
            yield node.name
        elif isinstance(node, ast.keyword) and node.arg == "act" and isinstance(node.value, ast.Name):
            yield node.value.id


def function_lines(tree: ast.Module) -> Iterator[int]:
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.end_lineno - node.lineno + 1


def spread(values: list[int]) -> tuple[int, int, int]:
    """Median, 90th percentile and maximum of sorted values."""
    return values[len(values) // 2], values[len(values) * 9 // 10], values[-1]


def within(graph: Mapping[str, set[str]], package: str) -> dict[str, set[str]]:
    inside = {name for name in graph if name.partition(".")[0] == package}
    return {name: graph[name] & inside for name in inside}


def rooms(graph: Mapping[str, set[str]], package: str) -> dict[str, set[str]]:
    """The imports between the rooms of a package."""

    def room(module: str) -> str:
        return ".".join(module.split(".")[:2])

    inside = {name: targets for name, targets in within(graph, package).items() if name != package}
    between: dict[str, set[str]] = {room(name): set() for name in inside}
    for name, targets in inside.items():
        between[room(name)] |= {room(target) for target in targets - {package}} - {room(name)}
    return between


def circles_of(graph: Mapping[str, set[str]]) -> list[set[str]]:
    return [component for component in strongly_connected(graph) if len(component) > 1]


def strongly_connected(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The graph's strongly connected components, each after those it reaches (Tarjan 1972)."""
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


def floors(graph: Mapping[str, set[str]]) -> int:
    """How many stand in the longest chain of imports."""
    height: dict[str, int] = {}
    for component in strongly_connected(graph):
        below = {target for node in component for target in graph[node]} - component
        height |= dict.fromkeys(component, 1 + max((height[target] for target in below), default=0))
    return max(height.values())


def main() -> None:
    trees = {path: ast.parse((ROOT / path).read_text(encoding="utf-8")) for path in sources()}
    for number in numbers():
        bound = "" if number.most is None else f"  at most {number.most}{'' if number.holds else '  EXCEEDED'}"
        print(f"{number.name:<32}{number.value:>8,}{bound}")
    graph = imports(trees)
    for circle in (*circles_of(graph), *(circle for name in PACKAGES for circle in circles_of(rooms(graph, name)))):
        print("circle:", ", ".join(sorted(circle)))


if __name__ == "__main__":
    main()
