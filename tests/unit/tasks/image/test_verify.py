"""`inv image.verify` on a damaged image, and parsing of untrusted reports."""

import copy
import json
from typing import Any

import pytest

from tasks.errors import ConfirmationRequired, TaskFailed
from tasks.image.verify import evaluate, parse_report, problem_error

REPORT: dict[str, Any] = {
    "python": "3.12.3",
    "packages": {"torch": "2.10.0"},
    "device": {"torch": "2.10.0", "cuda": "12.8", "visible": False},
    "models": [{"name": "org/M", "files": 3, "bytes": 5, "manifest_sha256": "a"}],
    "wrong": [],
}
ODD = (None, 5, 10**400, True, "x", [], {}, [None], {"a": 1})


def changed(document: dict[str, Any], key: str, odd: object) -> dict[str, Any]:
    """Return a copy with the field `key` set to `odd` at every level, or removed if `odd` is "gone"."""
    document_copy = copy.deepcopy(document)
    for level in (
        document_copy,
        *(item for value in document_copy.values() if isinstance(value, list) for item in value),
        document_copy.get("device"),
    ):
        if isinstance(level, dict) and key in level:
            level[key] = odd
            if odd == "gone":
                del level[key]
    return document_copy


@pytest.mark.parametrize(
    "key", ["python", "packages", "device", "models", "wrong", "torch", "visible", "name", "bytes"]
)
def test_a_malformed_report_is_a_task_error_or_has_lines(key: str) -> None:
    for odd in (*ODD, "gone"):
        stdout = json.dumps(changed(REPORT, key, odd))
        try:
            report = parse_report("i", stdout, 0)
        except TaskFailed:
            continue
        assert all(isinstance(line, str) for line in report["wrong"])


@pytest.mark.parametrize("exit_code", [0, 1, 2, 137, 139])
def test_a_self_check_that_was_killed_after_its_report_is_a_problem(exit_code: int) -> None:
    report = parse_report("i", json.dumps(REPORT), exit_code)
    assert bool(report["wrong"]) == (exit_code > 1)


@pytest.mark.parametrize("output", ["word", "{}\nword", "{}"])
def test_output_without_a_report_is_one_line(output: str) -> None:
    with pytest.raises(TaskFailed, match=r"^i: .*\b3\b.*: .*(word|\{\})$"):
        parse_report("i", output, 3)


@pytest.mark.parametrize(("end", "problems"), [
    ("2 steps\nimage-check: exit 0\n", []),
    ("No module\nimage-check: exit 1\n", ["python -m bench selfcheck: No module"]),
    ("2 steps\n", ["python -m bench selfcheck: 2 steps"]),
    ("", ["python -m bench selfcheck: no output"]),
])  # fmt: skip
def test_an_image_is_intact_only_if_the_self_check_and_the_trial_ended_well(end: str, problems: list[str]) -> None:
    output = f"{json.dumps(REPORT)}\n\nimage-check: exit 0\n{end}"
    assert evaluate("i", output, {"org/M": "a"}) == (REPORT, problems)
    assert len(evaluate("i", output, {"org/M": "b", "org/N": "c"})[1]) == len(problems) + 2


def test_damaged_weights_are_refused_with_the_command_that_rebuilds_the_image() -> None:
    wrong = ["models/org--M/model.safetensors: its sha256 is not the manifest's", "torch: not installed"]
    error = problem_error("qlora-fleet:current", wrong)
    assert isinstance(error, ConfirmationRequired)
    assert "1 more" in str(error)
    assert "; `inv build --force`" in str(error)
    assert isinstance(problem_error("i", ["model org--M: not in the image"]), ConfirmationRequired)


def test_a_problem_of_the_packages_only_is_a_failure() -> None:
    error = problem_error("qlora-fleet:current", ["torch: the lock says 2.8, installed is 2.7"])
    assert (type(error), str(error)) == (TaskFailed, "qlora-fleet:current: torch: the lock says 2.8, installed is 2.7")
