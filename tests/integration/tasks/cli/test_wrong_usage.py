"""What is typed wrong ends with one line and exit code 2, whoever notices it: Invoke's parser or a task of ours."""

import subprocess
from collections.abc import Callable

import pytest

import tasks
from tasks.reports.commands import compare

Inv = Callable[..., "subprocess.CompletedProcess[str]"]
EMPTY = "expected a value, found nothing; is a variable of yours unset?\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("benhc",), "benhc: no such task; did you mean bench?"),
        (("--help", "benhc"), "benhc: no such task; did you mean bench?"),
        (("--qick",), "--qick: no such flag; `inv --help` shows all"),
        (("bench", "--quik"), "bench: --quik: no such flag; did you mean --quick?"),
        (("bench", "-q"), "bench: -q: no such flag; did you mean --quick?"),
        # Invoke's own flags for commands that it runs: no task has one, so that it would be done for real.
        (("bench", "--dry"), "bench: --dry: no such flag; did you mean --dry-run?"),
        (("-R", "bench"), "-R: no such flag; `inv --help` shows all"),
        (("--list-depth", "x", "--list"), "--list-depth: expected a whole number, found 'x'"),
        (("--list-format=xml", "--list"), "--list-format: expected one of flat, nested, json, found 'xml'"),
        (("--list", "tenanzy"), "--list tenanzy: no such group of tasks; did you mean tenancy?"),
        (("--search-root=/", "bench"), "no tasks.py is in / or above it; `cd "),
        (("model.demo", "xyzzy"), "xyzzy: no such task; `inv --list` shows all"),
        (("compare", "A"), "compare: expected SECOND; `inv --help compare` explains"),
        (("bench", "--suite"), "bench: --suite: expected a value after it"),
        (("bench", "--only", "baseline", "--only", "runs"), "bench: --only: given twice; give it once"),
        (("bench", "--resume=collect"), "--resume=collect: collect is a task; type `--resume collect` "),
        (("bench", "--suite=huge"), "bench: --suite: expected one of quick, "),
        (("image.size", "--mbps=fast"), "image.size: --mbps: expected a number above 0, found 'fast'"),
        (("image.size", "--allocatable-gb=0"), "image.size: --allocatable-gb: expected a number above 0, found '0'"),
        (("vm.engine", "--size-gb=nan"), "vm.engine: --size-gb: expected a number from 1 to 100000, found 'nan'"),
        (("tune", "--memory-gib=2048"), "tune: --memory-gib: expected a number above 0, at most 1024, found '2048'"),
        (("compare", "a", "b", "--tolerance=all"), "--tolerance: expected percent, from 0 to below 100, "),
        (("compare", "a", "b", "--allow=gpu", "--allow=colour"), "--allow colour: expected one of profile, gpu, "),
        # An empty value is an unset variable, and never the default.
        (("bench", "--resume="), f"bench: --resume: {EMPTY}"),
        (("bench", "--resume", "", "collect"), f"bench: --resume: {EMPTY}"),
        (("report", "--run="), f"report: --run: {EMPTY}"),
        (("report", "--run", " "), f"report: --run: {EMPTY}"),
        (("compare", "", "x"), f"compare: first: {EMPTY}"),
        (("compare", "x", "y", "--allow=gpu", "--allow="), f"compare: --allow: {EMPTY}"),
        (("model.fetch", "--cache="), f"model.fetch: --cache: {EMPTY}"),
        (("--config=", "report"), f"inv: --config: {EMPTY}"),
        (("collect", "report", "--against="), f"report: --against: {EMPTY}"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(inv: Inv, words: tuple[str, ...], says: str) -> None:
    ended = inv(*words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(says)
    assert ended.stderr.count("\n") == 1


def test_a_task_may_follow_a_flag_whose_value_may_be_left_out(inv: Inv) -> None:
    said = inv("bench", "--resume", "collect", "report").stderr
    assert said.endswith(": there is no run yet; type `inv bench --quick` to make one\n")
    assert "run 'one' is not there" in inv("bench", "--resume", "one", "collect").stderr


def test_no_flag_of_a_task_has_a_short_form_which_would_mean_something_else_in_another() -> None:
    short = [word for of in tasks.ns.to_contexts() for word in of.flags if len(word) == 2]
    assert short == []


def test_what_may_be_given_again_is_a_list_to_invoke_which_else_takes_text_apart() -> None:
    assert [get_argument.kind for get_argument in compare.get_arguments() if get_argument.name in compare.iterable] == [
        list,
        list,
    ]


def test_completion_still_answers_for_half_a_line(inv: Inv) -> None:
    ended = inv("--complete", "--", "inv benhc --")
    assert (ended.returncode, ended.stderr) == (0, "")
