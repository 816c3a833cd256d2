"""`inv image.verify` on a damaged image, and parsing of untrusted reports."""

import copy
import json
from typing import Any

import pytest

from remote.hosts.host_protocol import Completed
from tasks.errors import ConfirmationRequired, TaskFailed
from tasks.image.verify import differing_models, parse_report, problem_error

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
        stdout = json.dumps(changed(REPORT, key, odd)).encode()
        try:
            report = parse_report("i", Completed(exit_code=0, stdout=stdout))
        except TaskFailed:
            continue
        assert all(isinstance(line, str) for line in report["wrong"])


@pytest.mark.parametrize("exit_code", [0, 1, 2, 137, 139])
def test_a_self_check_that_was_killed_after_its_report_is_a_problem(exit_code: int) -> None:
    report = parse_report("i", Completed(exit_code=exit_code, stdout=json.dumps(REPORT).encode()))
    assert bool(report["wrong"]) == (exit_code > 1)


@pytest.mark.parametrize("output", [b"word", b"{}\nword", b"{}"])
def test_output_without_a_report_is_one_line(output: bytes) -> None:
    with pytest.raises(TaskFailed, match=r"^i: .*\b3\b.*: .*(word|\{\}) cause$"):
        parse_report("i", Completed(exit_code=3, stdout=output, stderr=b"\ncause"))


def test_a_model_that_is_missing_or_differs_from_its_label_is_a_problem() -> None:
    assert [len([*differing_models(REPORT, {"org/M": digest})]) for digest in "ab"] == [0, 1]
    assert len([*differing_models(REPORT, {"org/M": "b", "org/N": "c"})]) == 2


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
