"""Text that `inv` prints for wrong usage, to a newcomer and to a shell's completion."""

import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from invoke.exceptions import Exit, ParseError
from invoke.loader import Loader

import tasks
from bench.records.version import VERSION
from tasks.cli.parser import patch_parser
from tasks.cli.program import _InvProgram
from tasks.errors import UsageError
from tests.support.cases import Case, load_cases
from tests.support.paths import ROOT

Inv = Callable[..., tuple[int, str, str]]


@pytest.fixture
def inv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inv:
    """Function that runs `inv` up to its end: returns exit code, output and message."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("INVOKE_RESULTS_FOLDER", str(tmp_path))
    patch_parser()
    # Invoke finds our tasks and would import them once more, in the place of those that other tests have.
    monkeypatch.setattr(Loader, "load", lambda loader, name: loader.find(name or "tasks") and (tasks, str(ROOT)))

    def run(*argv: str) -> tuple[int, str, str]:
        with pytest.raises((Exit, ParseError)) as raised:
            _InvProgram().run_argv(["inv", *argv])
        ended = raised.value if isinstance(raised.value, Exit) else UsageError.from_error(raised.value)
        return ended.code, capsys.readouterr().out, ended.message or ""

    return run


@pytest.mark.parametrize("case", load_cases(__file__, "wrong_usage.yaml"))
def test_wrong_usage_is_one_line_and_exit_code_2(inv: Inv, case: Case) -> None:
    code, out, message = inv(*case["argv"])
    assert (code, out) == (2, "")
    assert message.startswith(case["start"])
    assert case["token"] in message
    assert "\n" not in message


def test_a_task_may_follow_a_flag_with_an_optional_value(inv: Inv) -> None:
    assert "`inv bench --quick`" in inv("bench", "--resume", "collect", "report")[2]
    assert "'one'" in inv("bench", "--resume", "one", "collect")[2]


def test_no_flag_of_a_task_has_a_short_form() -> None:
    """Check for short forms, which could have different meanings in different tasks."""
    short_flags = [flag for context in tasks.ns.to_contexts() for flag in context.flags if len(flag) == 2]
    assert short_flags == []


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("inv collect rep", {"report", "data.check", "serve.check"}),
        ("inv train --da", {"--data", "--dry-run"}),
        ("inv compare A --", {"--tolerance"}),
        ("inv benhc --", {"--list"}),
        ("inv train --columns '{", set()),
    ],
)
def test_a_shell_gets_the_tasks_and_flags_that_may_follow(inv: Inv, line: str, candidates: set[str]) -> None:
    code, out, _ = inv("--complete", "--", line)
    assert code == 0
    assert candidates <= set(out.split())


@pytest.mark.parametrize(
    ("argv", "tokens"),
    [
        ((), ("bench ", "`inv --list --all`", "`inv help TASK`")),
        (("--help",), ("bench ", "--config")),
        (("--list", "--all"), ("bench ", "image.archive")),
        (("help",), ("bench ", "`inv help TASK`")),
        (("help", "bench"), ("inv bench [--flags]", "--quick", "Examples:")),
        (("compare", "--help"), ("inv compare FIRST SECOND [--flags]", "--tolerance", "Examples:")),
        (("settings", "-h"), ("inv settings [NAME] [--flags]", "--changed")),
        (("help", "tenancy"), ("inv tenancy [--flags]", "--json")),
        (("--version",), (f"qlora-fleet {VERSION}, Invoke 2.", f", Python {platform.python_version()}")),
    ],
)
def test_help_is_printed_for_what_a_newcomer_types(inv: Inv, argv: tuple[str, ...], tokens: tuple[str, ...]) -> None:
    code, out, message = inv(*argv)
    assert (code, message) == (0, "")
    assert [token for token in tokens if token not in out] == []
