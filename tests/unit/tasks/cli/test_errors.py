"""The exit codes and the one line."""

from hypothesis import given
from hypothesis import strategies as st
from invoke.exceptions import Exit

from tasks import errors


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
