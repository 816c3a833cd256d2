"""Commands and their flags: a function takes what is declared, and numbers are in their range."""

import dataclasses
import importlib
import inspect
import shlex
import typing
from collections.abc import Sequence
from typing import Any

import pytest
from invoke import Context
from invoke.parser import ParserContext, parser

from bench.records.trial import SUITE_NAMES
from tasks import ns
from tasks.cli.command_result import CommandResult, Effect
from tasks.cli.executor import ChainExecutor
from tasks.cli.flags import Command, Section, number, positional, switch, text, words
from tasks.cli.help import explain_command
from tasks.cli.parser import PatchedParser
from tasks.commands import suite_names
from tasks.errors import UsageError
from tasks.settings.sources import ProjectConfig
from tests.support.cases import Case, load_cases

try:
    import oci  # noqa: F401 - it starts a process, which a unit test may not do
except ModuleNotFoundError:
    without_sdk = ("tenancy",)
else:
    without_sdk = ()
ALL_COMMANDS = [task for collection in (ns, *ns.collections.values()) for task in collection.tasks.values()]
BY_NAME = {command.full_name: command for command in ALL_COMMANDS}
COMMANDS = [command for command in ALL_COMMANDS if command.group not in without_sdk]
TYPES: dict[type, tuple[Any, ...]] = {
    bool: (bool,),
    str: (str, str | None, str | bool | None),
    int: (int, int | None),
    float: (float, float | None),
    tuple: (Sequence[str],),
}


@pytest.mark.parametrize("declared", COMMANDS, ids=lambda declared: declared.full_name)
def test_a_function_takes_the_flags_of_its_command_and_returns_its_answer(declared: Command) -> None:
    module, _, name = declared.target.partition(":")
    function = getattr(importlib.import_module(module), name)
    types = typing.get_type_hints(function)
    assert types.pop("context") is Context
    returned = types.pop("return")
    expected = {Effect.SESSION: type(None), Effect.CHANGES: CommandResult | None}
    assert returned == expected.get(declared.effect, CommandResult)
    assert declared.effect.changes == ("dry_run" in declared.flags)
    if declared.options is not None:
        assert list(types.values()) == [declared.options]
        types = typing.get_type_hints(declared.options)
    own = {name: flag for name, flag in declared.flags.items() if not flag.setting}  # those come with the settings
    assert types.keys() == own.keys()
    wrong = {name: types[name] for name, flag in own.items() if types[name] not in TYPES[flag.kind]}
    assert not wrong
    inspect.signature(function).bind(None, **dict.fromkeys(types) if declared.options is None else {"options": None})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    again: bool = switch("repeat it")
    name: str | None = text("its name")
    count: int = number(int, "how many", 3, ge=1, le=5)
    kinds: tuple[str, ...] = words("its kinds", name="kind")


def command(name: str, target: str, effect: Effect = Effect.SHOWS, /, **flags: Any) -> Command:
    return Command(name, target, "Do it.", section=Section.SET_UP, effect=effect, **flags)


def record(_context: Context, options: object = None, **values: object) -> None:
    CALLS.append(options or values)


CALLS: list[Any] = []
FLAGS = {field.name: field for field in dataclasses.fields(Options)}


def test_a_function_gets_options_or_flags_by_name() -> None:
    target = f"{__name__}:record"
    CALLS.clear()
    command("a.b", target, options=Options)(Context(), again=True, kind=["x"])
    command("a.b", target, path=positional("where"), **FLAGS)(Context(), "/here", count="4")
    by_name = {"path": "/here", "again": False, "name": None, "count": 4, "kinds": ()}
    assert [Options(again=True, kinds=("x",)), by_name] == CALLS


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("collect --run=X report", ["X", "X"]),
        ("collect report", [None, None]),
        ("report collect --run=X", [None, "X"]),
        ("collect --run=X report --run=Y report", ["X", "Y", "Y"]),
        ("train --resume=X collect report", ["X", "X", "X"]),
        ("train --resume collect", [True, None]),
        ("collect --run=X monitor", ["X", None]),
    ],
)
def test_a_run_named_in_a_chain_is_that_of_the_tasks_after_it(
    typed: str, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_context: Context, *_: str, **flags: Any) -> None:
        CALLS.append(flags.get("run") or flags.get("resume"))

    CALLS.clear()
    monkeypatch.setattr(parser, "ParseMachine", PatchedParser)
    parsed = parser.Parser(contexts=CONTEXTS.values(), initial=ParserContext()).parse_argv(shlex.split(typed))
    tasks = [context for context in parsed if context.name]
    for task in tasks:
        monkeypatch.setattr(BY_NAME[task.name], "body", run)
    ChainExecutor(ns, ProjectConfig()).execute(*tasks)
    assert expected == CALLS


def test_the_name_of_a_task_and_a_flag_are_no_optional_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "ParseMachine", PatchedParser)
    typed = ["train", "--resume", "--from=best", "data.check", "train", "--epochs=3", "data.check", "train.jsonl"]
    parsed = parser.Parser(contexts=CONTEXTS.values(), initial=ParserContext()).parse_argv(typed)
    first, check, second, other = (context.args for context in parsed[1:])
    assert (first["resume"].value, first["from"].value, check.data.value) == (True, "best", "")
    assert (second.epochs.value, other.data.value) == ("3", "train.jsonl")


def test_commands_of_one_name_in_two_groups_are_not_the_same_to_invoke() -> None:
    first, second = (command(name, "m:f") for name in ("a.push", "push"))
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


CONTEXTS = {context.name: context for context in ns.to_contexts()}


@pytest.mark.parametrize("declared", ALL_COMMANDS, ids=lambda declared: declared.full_name)
def test_a_help_fits_80_columns_and_has_both_flags_of_its_effect(declared: Command) -> None:
    text = explain_command(declared)
    assert max(map(len, text.splitlines())) <= 80
    assert ("\n  --json" in text) == (declared.effect is not Effect.SESSION)
    assert ("\n  --dry-run" in text) == declared.effect.changes
