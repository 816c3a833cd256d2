"""What `inv image.verify` says of an image that is not whole."""

import contextlib
import copy
import json
from typing import Any

import pytest

from remote.image.docker_client import ContainerExit, model_digests
from remote.image.sbom.bom import Subject
from tasks.errors import ConfirmationRequired, TaskFailed
from tasks.image.sbom.write import _documents
from tasks.image.selfcheck_report import refused, report_of, show

REPORT: dict[str, Any] = {
    "python": "3.12.3",
    "packages": {"torch": "2.10.0"},
    "device": {"torch": "2.10.0", "cuda": "12.8", "visible": False},
    "models": [{"name": "org/M", "files": 3, "bytes": 5, "manifest_sha256": "a"}],
    "wrong": [],
}
CONTENTS: dict[str, Any] = {
    "system": "ubuntu",
    "python": [{"name": "a", "version": "1", "expression": "MIT", "licence": None}],
    "debian": [{"name": "b", "version": "1", "architecture": "all", "licence": None}],
    "models": [{"name": "o/m", "revision": "r", "manifest_sha256": "s", "files": [{"path": "p", "sha256": "t"}]}],
}
ODD = (None, 5, 10**400, True, "x", [], {}, [None], {"a": 1})


def changed(document: dict[str, Any], key: str, odd: object) -> dict[str, Any]:
    """With `odd` in the place of a field, wherever it is; or without that field, where it is "gone"."""
    made = copy.deepcopy(document)
    for one in (
        made,
        *(item for value in made.values() if isinstance(value, list) for item in value),
        made.get("device"),
    ):
        if isinstance(one, dict) and key in one:
            one[key] = odd
            if odd == "gone":
                del one[key]
    return made


@pytest.mark.parametrize(
    "key", ["python", "packages", "device", "models", "wrong", "torch", "visible", "name", "bytes"]
)
def test_a_report_that_is_none_is_one_line(key: str) -> None:
    for odd in (*ODD, "gone"):
        said = json.dumps(changed(REPORT, key, odd))
        try:
            report = report_of("i", ContainerExit(exit_code=0, stdout=said, stderr=""))
        except TaskFailed:
            continue
        show(report)  # what is taken can be shown
        assert all(isinstance(line, str) for line in report["wrong"])


@pytest.mark.parametrize("said", ["", "[]", "{}", "[" * 100_000, "null"])
def test_what_is_no_report_is_one_line(said: str) -> None:
    with pytest.raises(TaskFailed, match=r"^i: its self-check ended with 3 and no report: word$"):
        report_of("i", ContainerExit(exit_code=3, stdout=said, stderr="word"))


@pytest.mark.parametrize(
    "key", ["name", "version", "expression", "licence", "architecture", "files", "revision", "python"]
)
def test_an_image_that_holds_what_has_no_name_is_one_line(key: str) -> None:
    about = Subject(repository="h/r", digest="sha256:a", moment="2026-01-01T00:00:00Z", labels={})
    for odd in (*ODD, "gone"):
        said = json.dumps(changed(CONTENTS, key, odd))
        with contextlib.suppress(TaskFailed):
            _documents("i", about, ContainerExit(exit_code=0, stdout=said, stderr=""), "")


@pytest.mark.parametrize("label", ["[]", "5", "[" * 100_000, "{"])
def test_a_label_that_names_no_models_names_none(label: str) -> None:
    assert model_digests({"qlora-fleet.models": label}) == {}


def test_damaged_weights_are_refused_with_the_command_that_mends_them() -> None:
    wrong = ["models/org--M/model.safetensors: its sha256 is not the manifest's", "torch: not installed"]
    said = refused("qlora-fleet:current", wrong)
    assert isinstance(said, ConfirmationRequired)
    assert "(and 1 more); `inv build --anew` makes it again, of weights that it verifies" in str(said)
    assert isinstance(
        refused("i", ["model org--M: the labels name it, and it is not in the image"]), ConfirmationRequired
    )


def test_what_is_wrong_with_the_stack_alone_is_a_failure() -> None:
    said = refused("qlora-fleet:current", ["torch: the lock says 2.8, installed is 2.7"])
    assert (type(said), str(said)) == (TaskFailed, "qlora-fleet:current: torch: the lock says 2.8, installed is 2.7")
