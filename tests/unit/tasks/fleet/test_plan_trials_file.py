"""Where a file of trials is looked for, and how one that cannot be read is refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from bench.records import Trial
from tasks.errors import UsageError
from tasks.fleet.plan import read_trials
from tasks.settings.load import load

Make = Callable[..., Context]


def write(path: Path, trial: Trial) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(trial.to_json()))


def test_a_path_typed_in_a_subfolder_is_found_there_and_else_in_the_project(
    project: Path, context: Make, make_trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(context())
    write(project / "a" / "mine.json", make_trial(name="below"))
    write(project / "results" / "best.json", make_trial(name="of the project"))
    monkeypatch.chdir(project / "a")
    for typed, name in (("mine.json", "below"), ("results/best.json", "of the project"), ("../a/mine.json", "below")):
        assert [trial.name for trial in read_trials(settings, typed, None)] == [name]
    write(project / "mine.json", make_trial(name="beside invoke.yaml"))
    assert [trial.name for trial in read_trials(settings, "mine.json", None)] == ["below"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (str, "No such file or directory"),
        (Path.mkdir, "it is a folder, not a file"),
        (os.mkfifo, "it is a pipe, not a file"),
        (lambda path: path.write_bytes(b"\xff"), "not UTF-8 text"),
        (lambda path: os.truncate(path.touch() or path, 1 << 40), "it is larger than 16,777,216 bytes"),
    ],
)
def test_what_is_no_file_of_trials_is_refused_and_never_waited_for(
    make: Callable[[Path], Any], why: str, project: Path, context: Make
) -> None:
    make(project / "t.json")
    with pytest.raises(UsageError) as refused:
        read_trials(load(context()), "t.json", None)
    assert str(refused.value) == f"bench: --trials: t.json: cannot be read: {why}"
