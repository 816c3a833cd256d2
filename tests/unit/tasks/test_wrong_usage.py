"""What is typed wrong ends with one line and exit code 2, whoever notices it: Invoke's parser or a task of ours."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

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
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(inv: Inv, words: tuple[str, ...], says: str) -> None:
    ended = inv(*words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(says)
    assert ended.stderr.count("\n") == 1


def test_completion_still_answers_for_half_a_line(inv: Inv) -> None:
    ended = inv("--complete", "--", "inv benhc --")
    assert (ended.returncode, ended.stderr) == (0, "")
