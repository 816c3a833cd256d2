"""The house stays one in which rooms are found by name. `python -m tests.architecture` prints the same numbers."""

import ast
from pathlib import Path

from tests import architecture

TRACKED = (
    architecture.tracked("tests/*.py"),
    architecture.sources(),
)  # git lists them now; in a test no process may start


def test_circles_and_floors_of_a_graph_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert architecture.circles_of(graph) == [{"b", "c"}]
    assert architecture.floors(graph) == 3


def test_imports_are_counted_where_they_bind_at_run_time() -> None:
    source = "import os\nif TYPE_CHECKING:\n    import bench.a\ndef f():\n    from bench import b\n    import json\n"
    trees = {
        Path("bench/x.py"): ast.parse(source),
        Path("bench/a.py"): ast.parse(""),
        Path("bench/b.py"): ast.parse(""),
    }
    assert architecture.imports(trees)["bench.x"] == {"bench.b"}
    assert architecture.nested_imports(trees[Path("bench/x.py")]) == 2


def test_the_one_import_of_a_command_does_not_count() -> None:
    imports = "    import json\n    import os\n"
    source = f"@task(help={{}})\ndef check(c):\n{imports}def show():\n{imports}def other():\n{imports}run(act=show)\n"
    assert architecture.nested_imports(ast.parse(source)) == 1 + 1 + 2


def test_the_house_keeps_its_bounds() -> None:
    broken = [
        f"{number.name}: {number.value}, at most {number.most}" for number in architecture.numbers() if not number.holds
    ]
    assert not broken, "see `python -m tests.architecture`"
