"""Tests of the exit codes and the one-line messages."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoke import Collection, Config, Context, Executor, Task
from invoke.exceptions import Exit
from invoke.parser import ParserContext

from tasks import errors
from tasks.cli.executor import ChainExecutor


def test_each_end_has_the_exit_code_that_scripts_rely_on() -> None:
    classes = [subclass for subclass in errors.TaskFailed.__subclasses__() if subclass.__module__ == errors.__name__]
    assert {subclass: subclass("x").code for subclass in classes} == {
        errors.SomeTrialsFailed: 1,
        errors.UsageError: 2,
        errors.RetryableError: 3,
        errors.ConfirmationRequired: 4,
        errors.Undecided: 5,
        errors.Interrupted: 130,
    }
    assert all(issubclass(subclass, Exit) for subclass in classes), "Invoke prints its message and exits with its code"


@given(st.text(st.characters()))
def test_any_message_becomes_one_printable_line(text: str) -> None:
    assert errors.escape_controls(text).isprintable()
    assert str(errors.UsageError(text)) == errors.escape_controls(text)


def test_what_is_printable_stays_as_it_is() -> None:
    assert errors.escape_controls("Gerät 'voll' — \\n stays") == "Gerät 'voll' — \\n stays"
    assert errors.escape_controls("a\nb\t\x1b[31m\u2028\ud800") == "a\\nb\\t\\x1b[31m\\u2028\\ud800"


def executor_of(error: Exception) -> Executor:
    """Return an executor whose task raises this error."""

    def task(_context: Context) -> None:
        raise error

    return ChainExecutor(Collection(Task(task, name="task")), Config())


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EDQUOT, "free space"),
        (errno.EROFS, "make the disk writable"),
        (errno.EIO, "check the disk"),
        (errno.ESTALE, "check the network file system"),
    ],
)
def test_a_disk_that_takes_no_more_ends_a_task_in_one_line(number: int, remedy: str) -> None:
    with pytest.raises(errors.RetryableError, match=rf"^/results/x: .*; {remedy}"):
        executor_of(OSError(number, os.strerror(number), "/results/x")).execute(ParserContext("task"))
    with (
        pytest.raises(errors.RetryableError, match=rf"^results.folder: .*; {remedy}") as raised,
        errors.results_write_errors(Path()),
    ):
        raise OSError(number, os.strerror(number))
    assert raised.value.exit_code == 3


def test_any_other_error_of_a_task_is_a_defect_of_ours_and_shows_itself() -> None:
    with pytest.raises(FileNotFoundError):
        executor_of(FileNotFoundError(errno.ENOENT, "No such file", "x")).execute(ParserContext("task"))
