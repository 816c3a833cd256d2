"""Flags: one after an optional value, one that belongs to another task, and those that exclude each other."""

import pytest
from invoke import Context
from invoke.exceptions import ParseError
from invoke.parser import ParserContext, parser

from tasks import ns
from tasks.cli.parser import PatchedParser
from tasks.errors import UsageError
from tasks.image import commands as image_commands


@pytest.fixture
def parsing(monkeypatch: pytest.MonkeyPatch) -> parser.Parser:
    monkeypatch.setattr(parser, "ParseMachine", PatchedParser)
    return parser.Parser(contexts=ns.to_contexts(), initial=ParserContext())


def test_a_flag_after_a_flag_with_an_optional_value_is_not_its_value(parsing: parser.Parser) -> None:
    _, train = parsing.parse_argv(["train", "--resume", "--from=best"])
    assert (train.args["resume"].value, train.args["from"].value) == (True, "best")


def test_the_name_of_a_task_is_no_file_to_check(parsing: parser.Parser) -> None:
    _, check, training = parsing.parse_argv(["data.check", "train", "--epochs=3"])
    assert (check.args.data.value, training.name, training.args.epochs.value) == ("", "train", "3")
    _, check = parsing.parse_argv(["data.check", "train.jsonl"])
    assert check.args.data.value == "train.jsonl"


def test_a_flag_of_another_task_is_unknown_also_in_a_chain(parsing: parser.Parser) -> None:
    with pytest.raises(ParseError, match="push: --tmpdir: no such flag"):
        parsing.parse_argv(["build", "--tmpdir=/mnt", "push", "--tmpdir=/mnt"])


@pytest.mark.parametrize("command", ["build", "push"])
@pytest.mark.parametrize("flag", ["dry_run", "force"])
def test_cancel_is_refused_beside_a_flag_that_it_would_win_over(command, flag):
    with pytest.raises(UsageError, match=f"^{command}: --cancel .*{flag.replace('_', '-')}"):
        getattr(image_commands, command)(Context(), cancel=True, **{flag: True})
