"""The exit codes and the one line."""

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
    kinds = [kind for kind in errors.TaskFailed.__subclasses__() if kind.__module__ == errors.__name__]
    codes = {kind.__name__: kind("x").code for kind in kinds}
    codes.pop("NobodyReads", None)  # 141, as of a program that SIGPIPE ended
    assert codes == {"SomeTrialsFailed": 1, "UsageError": 2, "Resumable": 3, "Refused": 4, "Interrupted": 130}
    assert all(issubclass(kind, Exit) for kind in kinds), "what Invoke prints and obeys"


@given(st.text(st.characters()))
def test_any_message_becomes_one_printable_line(text: str) -> None:
    assert errors.one_line(text).isprintable()
    assert str(errors.UsageError(text)) == errors.one_line(text)


def test_what_is_printable_stays_as_it_is() -> None:
    assert errors.one_line("Gerät 'voll' — \\n stays") == "Gerät 'voll' — \\n stays"
    assert errors.one_line("a\nb\t\x1b[31m\u2028\ud800") == "a\\nb\\t\\x1b[31m\\u2028\\ud800"


def ending(error: Exception) -> Executor:
    """An executor whose task ends in this error."""

    def task(_context: Context) -> None:
        raise error

    executor = ChainExecutor(Collection(Task(task, name="task")), Config())
    executor._check_settings = lambda: None  # type: ignore[method-assign]
    return executor


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free space there"), (errno.EDQUOT, "free space there"), (errno.EROFS, "make the disk writable")],
)
def test_a_disk_that_takes_no_more_ends_a_task_in_one_line(number: int, remedy: str) -> None:
    with pytest.raises(errors.RetryableError, match=rf"^/results/x: .*; {remedy}, then type the same again$"):
        ending(OSError(number, os.strerror(number), "/results/x")).execute(ParserContext("task"))
    with (
        pytest.raises(errors.RetryableError, match=rf"^results.folder: .*; {remedy}") as ended,
        errors.writing(Path()),
    ):
        raise OSError(number, os.strerror(number))
    assert ended.value.exit_code == 3


def test_any_other_error_of_a_task_is_a_defect_of_ours_and_shows_itself() -> None:
    with pytest.raises(FileNotFoundError):
        ending(FileNotFoundError(errno.ENOENT, "No such file", "x")).execute(ParserContext("task"))
