"""Tests of wrong usage: one line and exit code 2, from Invoke's parser and from our tasks."""

import platform
import subprocess
from collections.abc import Callable

import pytest

import tasks
from bench.records.version import VERSION
from tests.support.cases import Case, load_cases

Inv = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("case", load_cases(__file__, "wrong_usage.yaml"))
def test_wrong_usage_is_one_line_and_exit_code_2(inv: Inv, case: Case) -> None:
    completed = inv(*case["argv"])
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr.startswith(case["start"])
    assert case["token"] in completed.stderr
    assert completed.stderr.count("\n") == 1


def test_a_task_may_follow_a_flag_with_an_optional_value(inv: Inv) -> None:
    stderr = inv("bench", "--resume", "collect", "report").stderr
    assert "`inv bench --quick`" in stderr
    assert "'one'" in inv("bench", "--resume", "one", "collect").stderr


def test_no_flag_of_a_task_has_a_short_form() -> None:
    """Check for short forms, which could have different meanings in different tasks."""
    short_flags = [flag for context in tasks.ns.to_contexts() for flag in context.flags if len(flag) == 2]
    assert short_flags == []


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("inv collect rep", {"report", "data.check", "serve.start"}),
        ("inv train --da", {"--data", "--dry-run"}),
        ("inv compare A --", {"--tolerance"}),
        ("inv benhc --", {"--list"}),
        ("inv train --columns '{", set()),
    ],
)
def test_a_shell_gets_the_tasks_and_flags_that_may_follow(inv: Inv, line: str, candidates: set[str]) -> None:
    completed = inv("--complete", "--", line)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert candidates <= set(completed.stdout.split())


@pytest.mark.parametrize(
    ("argv", "tokens"),
    [
        ((), ("bench ", "`inv --list --all`", "`inv help TASK`")),
        (("--help",), ("bench ", "--config=")),
        (("--list", "--all"), ("bench ", "image.archive")),
        (("help",), ("bench ", "`inv help TASK`")),
        (("help", "bench"), ("inv bench [--flags]", "--quick", "Examples:")),
        (("compare", "--help"), ("inv compare FIRST SECOND [--flags]", "--tolerance", "Examples:")),
        (("settings", "-h"), ("inv settings [NAME] [--flags]", "--changed", "Examples:")),
        (("help", "cluster"), ("nodes ", "teardown ")),
        (("help", "serve"), ("--merged", "Examples:", "serve.stop ")),
        (("help", "image"), (".archive", ".verify")),
        (("image",), (".archive", ".verify")),
        (("--version",), (f"qlora-fleet {VERSION}, Invoke 2.", f", Python {platform.python_version()}")),
    ],
)
def test_help_is_printed_for_what_a_newcomer_types(inv: Inv, argv: tuple[str, ...], tokens: tuple[str, ...]) -> None:
    completed = inv(*argv)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert [token for token in tokens if token not in completed.stdout] == []
