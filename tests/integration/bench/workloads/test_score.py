"""Score files of users, real processes: every way to fail costs its own row, and is named."""

from pathlib import Path
from unittest import mock

import pytest

from bench.records.atomic_files import sha256_of
from bench.records.score import ScoreFault
from bench.workloads.finetune import score
from bench.workloads.finetune.score import AnsweredRow, Scoring

FILE = """
import os, sys, time
print("loaded")

def score(prompt, answer, expected):
    print("x" * 100_000)
    sys.stderr.write("y" * 100_000)
    return eval(answer, {"os": os, "sys": sys, "time": time, "prompt": prompt, "expected": expected})
"""


def scores(tmp_path, *answers: str, text: str = FILE, row_sec: float = 20.0) -> list[tuple[object, str]]:
    path = tmp_path / "my.py"
    path.write_text(text)
    scoring = Scoring(method=str(path), sha256=sha256_of(path))
    rows = [AnsweredRow(prompt="p\n\u2028", answer=answer, expected="\ud800\N{SNOWMAN}") for answer in answers]
    with mock.patch.multiple(score, ROW_SEC=row_sec, START_SEC=20.0):
        results = scoring.score(rows)
    return [(result.score if result.fault is None else result.fault, result.detail) for result in results]


def test_each_failure_costs_its_own_row(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    answers = {
        "0.25": 0.25,
        "True": 1.0,
        "prompt == 'p\\n\\u2028' and expected == '\\ud800\\u2603'": 1.0,
        "float('AWS_SECRET_ACCESS_KEY' in os.environ)": 0.0,
        "1 / 0": ScoreFault.RAISED,
        "[][prompt + chr(27)]": ScoreFault.RAISED,
        "{}['\\x1b\\n']": ScoreFault.RAISED,
        "float('nan')": ScoreFault.NOT_A_NUMBER,
        "1.5": ScoreFault.NOT_A_NUMBER,
        "'0.5'": ScoreFault.NOT_A_NUMBER,
        "0.5 if os.getcwd() != '/' else 0": 0.5,
        "sys.exit()": ScoreFault.CRASHED,
        "os.kill(os.getpid(), 9)": ScoreFault.CRASHED,
        "0.125": 0.125,
    }
    results = scores(tmp_path, *answers)
    assert [result for result, _ in results] == list(answers.values())
    details = dict(zip(answers, (detail for _, detail in results), strict=True))
    assert details["1 / 0"] == "ZeroDivisionError: division by zero"
    assert all(detail.isprintable() for _, detail in results)
    assert details["sys.exit()"] == "exit code 0"
    assert details["os.kill(os.getpid(), 9)"] == "signal 9"


def test_a_hang_ends_at_its_deadline_with_everything_that_it_started(tmp_path):
    started = tmp_path / "child"
    text = f"""
import os, subprocess, time
def score(prompt, answer, expected):
    if answer == "hang":
        child = subprocess.Popen(["sleep", "600"])
        open({str(started)!r}, "w").write(str(child.pid))
        time.sleep(600)
    return 1
"""
    results = scores(tmp_path, "", "hang", "", text=text, row_sec=1.0)
    assert [result for result, _ in results] == [1.0, ScoreFault.TIMED_OUT, 1.0]
    state = Path(f"/proc/{started.read_text()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_reply_without_end_is_cut(tmp_path):
    """The user's code finds the stream of the replies."""
    text = """
import os
def score(prompt, answer, expected):
    while answer == "flood":
        os.write(3, b"x" * 65536)
    if answer == "lie":
        os.write(3, b'{"score": 7}\\n')
        os._exit(0)
    return 1
"""
    results = [result for result, _ in scores(tmp_path, "flood", "", "lie", "", text=text)]
    assert results[1::2] == [1.0, 1.0]
    assert results[::2] == [ScoreFault.OUTPUT] * 2


def test_a_forked_process_gives_no_score_to_another_row(tmp_path):
    text = """
import os, time
def score(prompt, answer, expected):
    if answer == "0.25" and os.fork() == 0:
        time.sleep(0.2)
    time.sleep(0.1)
    return float(answer)
"""
    answers = [str(number / 8) for number in range(8)]
    results = [result for result, _ in scores(tmp_path, *answers, text=text)]
    assert ScoreFault.OUTPUT in results
    assert all(result in (float(answer), ScoreFault.OUTPUT) for result, answer in zip(results, answers, strict=True))


DELETED = """
import os
def score(prompt, answer, expected):
    if answer:
        os.unlink(__file__)
        os.abort()
    return 1
"""


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        (DELETED, ("", "delete", ""), [1.0, ScoreFault.CRASHED, ScoreFault.CRASHED]),
        ("raise RuntimeError('no')", ("a",), [ScoreFault.RAISED]),
        ("x = 1", ("a",), [ScoreFault.RAISED]),
        ("import os\nos._exit(3)", "a" * (score.MAX_FAILURES + 1), [ScoreFault.CRASHED] * 5 + [ScoreFault.GAVE_UP]),
    ],
)
def test_a_file_that_cannot_be_used_keeps_the_scores_so_far(tmp_path, text, answers, expected):
    assert [result for result, _ in scores(tmp_path, *answers, text=text)] == expected
