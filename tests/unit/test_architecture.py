"""Tests of how the structure of the code is counted. `make check` holds the bounds."""

import ast
from graphlib import CycleError
from pathlib import Path

import pytest

from tests import architecture


def test_a_chain_has_its_length_and_a_cycle_is_named() -> None:
    assert architecture.layers({"a": {"b"}, "b": {"c", "d"}, "c": {"d"}, "d": set()}) == 4
    with pytest.raises(CycleError) as raised:
        architecture.layers({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    assert {"b", "c"} <= set(raised.value.args[1])


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
    source = f"def show():\n{imports}def other():\n{imports}_add_command(commands, show)\n"
    assert architecture.nested_imports(ast.parse(source)) == 1 + 2
