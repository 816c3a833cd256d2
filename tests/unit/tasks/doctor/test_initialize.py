"""`inv init`: answers are checked, shown as a difference, and written over nothing that is not copied."""

import sys

import pytest
import yaml

from tasks.commands import InitOptions
from tasks.doctor import initialize
from tasks.errors import ConfirmationRequired, UsageError


@pytest.fixture
def home(project):
    return project.parent / "home"


def files(home):
    return sorted(home.glob(".invoke.yaml*"))


def written(home):
    return yaml.safe_load((home / ".invoke.yaml").read_text())


def type_answers(monkeypatch, *answers):
    """Answer each question of a terminal in turn."""
    remaining = iter(answers)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: next(remaining))


def test_flags_are_written_with_comments_and_the_old_file_is_kept(home, context):
    (home / ".invoke.yaml").write_text("# mine\nmodel: {path: /old}\n")
    options = InitOptions(provider="generic", model="/new", registry_user="me", registry="ghcr.io/me/fleet:1", yes=True)
    initialize.initialize(context(), options)
    text = (home / ".invoke.yaml").read_text()
    assert written(home) == {
        "model": {"path": "/new"},
        "cluster": {"provider": "generic"},
        "registry": {"user": "me", "image": "ghcr.io/me/fleet:1"},
    }
    assert text.startswith("# mine\n")
    assert "# target of `inv push`" in text
    assert files(home)[1].read_text() == "# mine\nmodel: {path: /old}\n"
    initialize.initialize(context(), options)
    assert len(files(home)) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (InitOptions(), UsageError),
        (InitOptions(yes=True), UsageError),
        (InitOptions(provider="nope", yes=True), UsageError),
        (InitOptions(model=" ", yes=True), UsageError),
        (InitOptions(provider="oci"), ConfirmationRequired),
    ],
)
def test_what_is_invalid_or_unconfirmed_is_not_written(home, context, options, error):
    with pytest.raises(error) as raised:
        initialize.initialize(context(), options)
    assert raised.value.remedy or options.provider == "nope" or options.model == " "
    assert files(home) == []


def test_a_terminal_is_asked_again_after_an_invalid_answer(home, context, monkeypatch):
    type_answers(monkeypatch, "nope", "oci", "", "me", "Not A Name", "n", "ghcr.io/me/fleet:1", "", "", "", "y")
    initialize.initialize(context(), InitOptions())
    assert written(home) == {"cluster": {"provider": "oci"}, "registry": {"user": "me", "image": "ghcr.io/me/fleet:1"}}


@pytest.mark.parametrize("text", [None, "model: {path: /m}\n"])
def test_enter_at_every_question_changes_nothing_and_says_whether_there_is_a_file(
    text, home, context, monkeypatch, capsys
):
    if text is not None:
        (home / ".invoke.yaml").write_text(text)
    type_answers(monkeypatch, *[""] * len(initialize.QUESTIONS))
    initialize.initialize(context(), InitOptions())
    assert [path.read_text() for path in files(home)] == ([] if text is None else [text])
    assert ("already has" in capsys.readouterr().out) is (text is not None)


def test_a_cluster_makes_the_fleet_one_of_pods(home, context, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(home / "absent"))
    initialize.initialize(context(), InitOptions(cluster="mine", data="/shared-data/x.jsonl", yes=True))
    assert written(home) == {
        "cluster": {"context": "mine"},
        "fleet": {"kind": "pods"},
        "bench": {"profile": "gpu"},
        "data": {"path": "/shared-data/x.jsonl"},
    }
