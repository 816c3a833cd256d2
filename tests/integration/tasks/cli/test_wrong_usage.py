"""Tests of wrong usage: one line and exit code 2, from Invoke's parser and from our tasks."""

import subprocess
from collections.abc import Callable

import pytest

import tasks

Inv = Callable[..., "subprocess.CompletedProcess[str]"]
EMPTY = "expected a value"


@pytest.mark.parametrize(
    ("argv", "prefix", "token"),
    [
        (("benhc",), "benhc: ", "bench?"),
        (("--help", "benhc"), "benhc: ", "bench?"),
        (("--qick",), "--qick: ", "`inv --help`"),
        (("bench", "--quik"), "bench: --quik: ", "--quick?"),
        (("bench", "-q"), "bench: -q: ", "--quick?"),
        # Invoke's flags for commands that it runs itself. No task uses them, so `--dry` would run the real task.
        (("bench", "--dry"), "bench: --dry: ", "--dry-run?"),
        (("bench", "--quick=yes"), "bench: --quick: ", "'yes'"),
        (("collect", "bench", "--dry-run=no", "report"), "bench: --dry-run: ", "'no'"),
        (("help", "benhc"), "benhc: ", "bench?"),
        (("-R", "bench"), "-R: ", "`inv --help`"),
        (("--list-depth", "x", "--list"), "--list-depth: ", "'x'"),
        (("--list-format=xml", "--list"), "--list-format: ", "flat, nested, json"),
        (("--list", "tenanzy"), "--list tenanzy: ", "tenancy?"),
        (("--search-root=/", "bench"), "no tasks.py ", "`cd "),
        (("model.demo", "xyzzy"), "xyzzy: ", "`inv --list`"),
        (("compare", "A"), "compare: ", "SECOND; `inv --help compare`"),
        (("bench", "--suite"), "bench: --suite: ", EMPTY),
        (("bench", "--only", "baseline", "--only", "runs"), "bench: --only: ", "twice"),
        (("bench", "--resume=collect"), "--resume=collect: ", "`--resume collect`"),
        (("bench", "--suite=huge"), "bench: --suite: ", "quick, "),
        (("bench", "--workers=2.5"), "bench: --workers: ", "a whole number from 1, found '2.5'"),
        (("image.size", "--mbps=fast"), "image.size: --mbps: ", "'fast'"),
        (("image.size", "--allocatable-gb=0"), "image.size: --allocatable-gb: ", "'0'"),
        (("vm.engine", "--size-gb=nan"), "vm.engine: --size-gb: ", "100000, found 'nan'"),
        (("tune", "--memory-gib=2048"), "tune: --memory-gib: ", "1024, found '2048'"),
        (("compare", "a", "b", "--tolerance=all"), "compare: --tolerance: ", "100"),
        (("compare", "a", "b", "--allow=gpu", "--allow=colour"), "--allow colour: ", "profile, gpu, "),
        # An empty value is usually an unset variable. It never means the default.
        (("bench", "--resume="), "bench: --resume: ", EMPTY),
        (("bench", "--resume", "", "collect"), "bench: --resume: ", EMPTY),
        (("report", "--run="), "report: --run: ", EMPTY),
        (("report", "--run", " "), "report: --run: ", EMPTY),
        (("compare", "", "x"), "compare: first: ", EMPTY),
        (("compare", "x", "y", "--allow=gpu", "--allow="), "compare: --allow: ", EMPTY),
        (("model.fetch", "--cache="), "model.fetch: --cache: ", EMPTY),
        (("--config=", "report"), "inv: --config: ", EMPTY),
        (("collect", "report", "--against="), "report: --against: ", EMPTY),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(inv: Inv, argv: tuple[str, ...], prefix: str, token: str) -> None:
    completed = inv(*argv)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr.startswith(prefix)
    assert token in completed.stderr
    assert completed.stderr.count("\n") == 1


def test_a_task_may_follow_a_flag_with_an_optional_value(inv: Inv) -> None:
    stderr = inv("bench", "--resume", "collect", "report").stderr
    assert "`inv bench --quick`" in stderr
    assert "'one'" in inv("bench", "--resume", "one", "collect").stderr


def test_no_flag_of_a_task_has_a_short_form() -> None:
    """Check for short forms, which could have different meanings in different tasks."""
    short_flags = [flag for context in tasks.ns.to_contexts() for flag in context.flags if len(flag) == 2]
    assert short_flags == []


def test_completion_still_answers_for_half_a_line(inv: Inv) -> None:
    completed = inv("--complete", "--", "inv benhc --")
    assert (completed.returncode, completed.stderr) == (0, "")


@pytest.mark.parametrize(
    ("argv", "tokens"),
    [
        ((), ("bench ", "image.bom", "`inv help TASK`")),
        (("help",), ("bench ", "`inv help TASK`")),
        (("help", "bench"), ("bench [--options]", "--quick")),
        (("help", "image"), (".bom", ".archive")),
        (("image",), (".bom", ".archive")),
        (("--version",), ("qlora-fleet ", ", Invoke 2.")),
    ],
)
def test_help_is_printed_for_what_a_newcomer_types(inv: Inv, argv: tuple[str, ...], tokens: tuple[str, ...]) -> None:
    completed = inv(*argv)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert [token for token in tokens if token not in completed.stdout] == []
