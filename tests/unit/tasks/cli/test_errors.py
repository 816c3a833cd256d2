"""The exit codes, the one line, and the hook that leaves everything else alone."""

import sys
from pathlib import Path
from types import TracebackType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoke import Config
from invoke.exceptions import Exit

from tasks import errors
from tasks.cli import startup


def test_each_end_has_the_exit_code_that_scripts_rely_on() -> None:
    codes = {kind.__name__: kind("x").code for kind in errors.TaskFailed.__subclasses__()}
    assert codes == {"SomeTrialsFailed": 1, "UsageError": 2, "Resumable": 3, "Refused": 4, "Interrupted": 130}
    assert all(issubclass(kind, Exit) for kind in errors.TaskFailed.__subclasses__()), "what Invoke prints and obeys"


@given(st.text(st.characters()))
def test_any_message_becomes_one_printable_line(text: str) -> None:
    assert errors.one_line(text).isprintable()
    assert str(errors.UsageError(text)) == errors.one_line(text)


def test_what_is_printable_stays_as_it_is() -> None:
    assert errors.one_line("Gerät 'voll' — \\n stays") == "Gerät 'voll' — \\n stays"
    assert errors.one_line("a\nb\t\x1b[31m\u2028\ud800") == "a\\nb\\t\\x1b[31m\\u2028\\ud800"


def test_the_hook_leaves_every_other_exception_to_the_one_before(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[BaseException] = []

    def before(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
        seen.append(error)

    monkeypatch.setattr(sys, "excepthook", before)
    startup.explain_settings_failures()
    good = Config(project_location=str(project))

    def fails_inside_invoke_with_good_settings() -> None:
        good.no_such_setting  # noqa: B018 - reading it is the point

    for failing in (lambda: 1 / 0, fails_inside_invoke_with_good_settings):
        with pytest.raises((ZeroDivisionError, AttributeError)) as caught:
            failing()
        sys.excepthook(caught.type, caught.value, caught.value.__traceback__)
    assert [type(error) for error in seen] == [ZeroDivisionError, AttributeError]


def test_the_hook_turns_invokes_traceback_over_a_file_into_one_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    startup.explain_settings_failures()
    (project / "invoke.yaml").write_text("fleet: [")
    config = Config(project_location=str(project))
    with pytest.raises(Exception, match="flow") as caught:
        config.load_project()
    with pytest.raises(SystemExit) as ended:
        sys.excepthook(caught.type, caught.value, caught.value.__traceback__)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "invoke.yaml:1: not YAML: expected the node content, but found '<stream end>'\n"
