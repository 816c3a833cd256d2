"""Renamed flags: each old one is accepted with one line that names the new one, and both at once are refused."""

from typing import Any

import pytest
from invoke import Context
from invoke.exceptions import ParseError
from invoke.parser import ParserContext, parser

from tasks import ns
from tasks.cli.flags import RENAMED_FLAGS
from tasks.cli.parser import PatchedParser
from tasks.errors import UsageError
from tasks.image import commands as image_commands

OLD_FLAGS = [(task, old, new) for task, flags in RENAMED_FLAGS.items() for old, new in flags.items()]
CONTEXTS = {context.name: context for context in ns.to_contexts()}


@pytest.fixture(autouse=True)
def _patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "ParseMachine", PatchedParser)


def parse(*argv: str) -> list[dict[str, Any]]:
    """The arguments of each task on this command line."""
    tasks = parser.Parser(contexts=CONTEXTS.values(), initial=ParserContext()).parse_argv(list(argv))[1:]
    return [task.as_kwargs for task in tasks]


def words(task: str, flag: str, new: str) -> tuple[str, ...]:
    """A flag with a value, if it takes one."""
    return (flag, "7") if CONTEXTS[task].flags[new].takes_value else (flag,)


@pytest.mark.parametrize(("task", "old", "new"), OLD_FLAGS)
def test_an_old_flag_means_the_new_one_and_is_one_line_that_names_it(
    task: str, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = parse(task, *words(task, new, new))
    assert capsys.readouterr().err == ""
    assert parse(task, *words(task, old, new)) == expected != parse(task)
    assert capsys.readouterr().err == f"{task}: {old} is now {new}\n"
    if len(words(task, old, new)) > 1:
        assert parse(task, f"{old}=7") == expected


@pytest.mark.parametrize(("task", "old", "new"), OLD_FLAGS)
def test_an_old_and_a_new_flag_at_once_are_refused_in_one_line(
    task: str, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for first, second in ((old, new), (new, old)):
        with pytest.raises(ParseError, match=rf"^{task}: {old} is now {new}, and both are given; leave out {old}$"):
            parse(task, *words(task, first, new), *words(task, second, new))
    assert capsys.readouterr().err == ""


def test_an_old_flag_after_a_flag_with_an_optional_value_is_not_its_value() -> None:
    (train,) = parse("train", "--resume", "--trial=best.json")
    assert (train["resume"], train["trial_file"]) == (True, "best.json")
    (nodes,) = parse("tenancy.nodes", "--shrink")
    assert nodes["remove"] is True


def test_each_task_of_a_chain_has_its_own_old_flags(capsys: pytest.CaptureFixture[str]) -> None:
    build, push = parse("build", "--anew", "push", "--stale")  # vocabulary: an old flag
    assert (build["force"], push["force"]) == (True, True)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["build: --anew is now --force", "push: --stale is now --force"]  # vocabulary: an old flag
    with pytest.raises(ParseError, match="--stale: no such flag"):
        parse("build", "--stale")


@pytest.mark.parametrize("command", ["build", "push"])
@pytest.mark.parametrize("flag", ["dry_run", "force"])
def test_cancel_is_refused_beside_a_flag_that_it_would_win_over(command, flag):
    with pytest.raises(UsageError, match=f"^{command}: --cancel .*{flag.replace('_', '-')}"):
        getattr(image_commands, command)(Context(), cancel=True, **{flag: True})
