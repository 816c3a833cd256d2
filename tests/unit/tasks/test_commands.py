"""Commands and their flags: a function takes what is declared, and numbers are in their range."""

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Sequence
from typing import Any

import pytest
from invoke import Context

from bench.records.trial import SUITE_NAMES
from tasks import ns
from tasks.cli.flags import Command, number, positional, switch, text, words
from tasks.commands import suite_names
from tasks.errors import UsageError
from tests.support.cases import Case, load_cases

try:
    import oci  # noqa: F401 - it starts a process, which a unit test may not do
except ModuleNotFoundError:
    without_sdk = ("tenancy",)
else:
    without_sdk = ()
COMMANDS = [
    task
    for collection in (ns, *ns.collections.values())
    for task in collection.tasks.values()
    if task.group not in without_sdk
]
TYPES: dict[type, tuple[Any, ...]] = {
    bool: (bool,),
    str: (str, str | None, str | bool | None),
    int: (int, int | None),
    float: (float, float | None),
    tuple: (Sequence[str],),
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.full_name)
def test_a_function_takes_the_flags_of_its_command(command: Command) -> None:
    module, _, name = command.target.partition(":")
    function = getattr(importlib.import_module(module), name)
    types = typing.get_type_hints(function)
    assert types.pop("context") is Context
    del types["return"]
    if command.options is not None:
        assert list(types.values()) == [command.options]
        types = typing.get_type_hints(command.options)
    assert types.keys() == command.flags.keys()
    wrong = {name: types[name] for name, flag in command.flags.items() if types[name] not in TYPES[flag.kind]}
    assert not wrong
    inspect.signature(function).bind(None, **dict.fromkeys(types) if command.options is None else {"options": None})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    again: bool = switch("repeat it")
    name: str | None = text("its name")
    count: int = number(int, "how many", 3, ge=1, le=5)
    kinds: tuple[str, ...] = words("its kinds", name="kind")


def record(_context: Context, options: object = None, **values: object) -> None:
    CALLS.append(options or values)


CALLS: list[Any] = []
FLAGS = {field.name: field for field in dataclasses.fields(Options)}


def test_a_function_gets_options_or_flags_by_name() -> None:
    target = f"{__name__}:record"
    CALLS.clear()
    Command("a.b", target, "Do it.", options=Options)(Context(), again=True, kind=["x"])
    Command("a.b", target, "Do it.", path=positional("where"), **FLAGS)(Context(), "/here", count="4")
    by_name = {"path": "/here", "again": False, "name": None, "count": 4, "kinds": ()}
    assert [Options(again=True, kinds=("x",)), by_name] == CALLS


def test_commands_of_one_name_in_two_groups_are_not_the_same_to_invoke() -> None:
    first, second = (Command(name, "m:f", "Do it.") for name in ("a.push", "push"))
    assert first.name == second.name
    assert first != second


@pytest.mark.parametrize("case", load_cases(__file__, "numbers.yaml"))
def test_a_number_is_checked(case: Case) -> None:
    flag = number({"int": int, "float": float}[case["kind"]], "how many", **case["range"]).metadata["flag"]
    if "error" not in case:
        assert flag.parse("a: --count", case["input"]) == case["expected"]
        return
    with pytest.raises(UsageError) as caught:
        flag.parse("a: --count", case["input"])
    assert str(caught.value) == f"a: --count: expected {case['error']}, found {case['input']!r}"


def test_the_help_names_every_suite_but_all() -> None:
    assert sorted([*suite_names().split(", "), "all"]) == sorted(SUITE_NAMES)
