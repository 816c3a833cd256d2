"""What is typed wrong ends with one line and exit code 2, whoever notices it: Invoke's parser or a task of ours."""

import subprocess
from collections.abc import Callable

import pytest

from tasks.reports.verbs import compare

Inv = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("benhc",), "No idea what 'benhc' is!"),
        (("bench", "--quik"), "No idea what '--quik' is!"),
        (("model.demo", "extra"), "No idea what 'extra' is!"),
        (("compare", "A"), "'compare' did not receive required positional arguments: 'second'"),
        (("bench", "--suite"), "Flag <Argument: suite (u)> needed value and was not given one!"),
        (("bench", "--suite=huge"), "bench: --suite: expected one of quick, "),
        (("image.size", "--mbps=fast"), "image.size: --mbps: expected a number above 0, found 'fast'"),
        (("image.size", "--allocatable-gb=0"), "image.size: --allocatable-gb: expected a number above 0, found '0'"),
        (("vm.engine", "--size-gb=nan"), "vm.engine: --size-gb: expected a number from 1 to 100000, found 'nan'"),
        (("tune", "--memory-gib=2048"), "tune: --memory-gib: expected a number above 0, at most 1024, found '2048'"),
        (("compare", "a", "b", "--tolerance=all"), "--tolerance: expected percent, from 0 to below 100, "),
        (("compare", "a", "b", "--allow=gpu", "--allow=colour"), "--allow colour: expected one of profile, gpu, "),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(inv: Inv, words: tuple[str, ...], says: str) -> None:
    ended = inv(*words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(says)
    assert ended.stderr.count("\n") == 1


def test_what_may_be_given_again_is_a_list_to_invoke_which_else_takes_text_apart() -> None:
    assert [one.kind for one in compare.get_arguments() if one.name in compare.iterable] == [list, list]


def test_completion_still_answers_for_half_a_line(inv: Inv) -> None:
    ended = inv("--complete", "--", "inv benhc --")
    assert (ended.returncode, ended.stderr) == (0, "")
