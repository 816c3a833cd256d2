"""Answers of commands: one JSON object on standard output, also for a failure; other output on standard error."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from invoke import Context
from invoke.exceptions import Exit

from bench.records.status import ReasonCode
from tasks.cli import command_result
from tasks.cli.command_result import CommandResult, Effect
from tasks.cli.flags import switch
from tasks.cli.program import _print_error
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tests.support.cases import Case, load_cases
from tests.unit.tasks.test_commands import command

Capture = pytest.CaptureFixture[str]
ERRORS: dict[str, Callable[[], TaskFailed]] = {
    "usage": lambda: UsageError("fleet.size: 0", remedy="set it to 1"),
    "retryable": lambda: RetryableError("no route"),
    "refused": lambda: ConfirmationRequired("a \x1b[31mlock", remedy="wait"),
    "caused": lambda: caused_error(),
}


class _InputError(Exception):
    reason_code = ReasonCode.INPUT_REJECTED


def caused_error() -> TaskFailed:
    try:
        try:
            raise _InputError("damaged")
        except _InputError as error:
            raise ConfirmationRequired.from_error(error) from error
    except ConfirmationRequired as error:
        return error


def show(_context: Context, *, dry_run: bool = False, fails: bool = False) -> CommandResult:
    print("progress")
    failure = UsageError("too few", remedy="add some") if fails else None
    return CommandResult(data={"rows": [1], "dry": dry_run}, show=lambda: print("one row"), failure=failure)


def make(effect: Effect) -> Any:
    return command("a.b", f"{__name__}:show", effect, dry_run=switch("plan"), fails=switch("fail"))


def test_text_is_printed_as_it_is_made(capsys: Capture) -> None:
    make(Effect.SHOWS)(Context())
    assert capsys.readouterr() == ("progress\none row\n", "")


@pytest.mark.parametrize(("dry_run", "kind"), [(False, "a.b"), (True, "a.b.plan")])
def test_json_is_alone_on_standard_output(dry_run: bool, kind: str, capsys: Capture) -> None:
    make(Effect.BOTH)(Context(), json=True, dry_run=dry_run)
    output = capsys.readouterr()
    assert json.loads(output.out) == {"kind": kind, "schema_version": 2, "rows": [1], "dry": dry_run}
    assert output.err == "progress\n"


def test_json_of_a_change_needs_a_dry_run(capsys: Capture) -> None:
    with pytest.raises(UsageError, match="--dry-run"):
        make(Effect.CHANGES)(Context(), json=True)
    assert capsys.readouterr() == ("", "")


def test_a_failure_after_the_data_is_in_the_same_object(capsys: Capture) -> None:
    with pytest.raises(UsageError) as raised:
        make(Effect.SHOWS)(Context(), json=True, fails=True)
    assert _print_error(raised.value, ["inv", "a.b", "--json"]) == 2
    output = capsys.readouterr()
    error = {"exit_code": 2, "reason_code": "bad_input", "message": "too few", "remedy": "add some"}
    assert json.loads(output.out)["error"] == error
    at_the_end_of_a_chain = Exit(code=1)
    at_the_end_of_a_chain.__cause__ = raised.value
    _print_error(at_the_end_of_a_chain, ["inv", "a.b", "--json"])
    assert capsys.readouterr().out == ""
    assert output.err == "progress\ntoo few; add some\n"


@pytest.mark.parametrize("case", load_cases(__file__, "error_objects.yaml"))
def test_a_failure_is_an_object_of_kind_error(case: Case, capsys: Capture) -> None:
    error = ERRORS[case["error"]]()
    assert _print_error(error, ["inv", "x", "--json"]) == case["expected"]["exit_code"]
    assert json.loads(capsys.readouterr().out) == {"kind": "error", "schema_version": 2, **case["expected"]}
    _print_error(error, ["inv", "x"])
    assert capsys.readouterr().out == ""


def test_an_unexpected_exception_is_an_object_too(capsys: Capture) -> None:
    command_result.print_error_object(ZeroDivisionError("division by zero"))
    document = json.loads(capsys.readouterr().out)
    assert (document["exit_code"], document["reason_code"]) == (1, "failed")
