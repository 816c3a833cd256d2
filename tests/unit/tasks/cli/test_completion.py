"""Tests of the candidates for a shell's completion, without a shell."""

from pathlib import Path

import pytest
from invoke.parser import Parser
from invoke.program import Program

import tasks
from tasks.cli.completion import Completion
from tasks.settings.sources import ProjectConfig
from tests.support.cases import Case, load_cases
from tests.support.paths import ROOT


@pytest.fixture
def completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Completion:
    for name in ("20261125-020000-train", "20261126-020000-quick", "$(touch x)", "unplanned"):
        (tmp_path / name).mkdir()
        if name != "unplanned":
            (tmp_path / name / "run.json").touch()
    (tmp_path / "latest").symlink_to("20261126-020000-quick")
    monkeypatch.setenv("INVOKE_RESULTS_FOLDER", str(tmp_path))
    monkeypatch.setenv("INVOKE_FLEET_SIZE", "3")
    config = ProjectConfig()
    config.set_project_location(str(ROOT))
    program = Program()
    return Completion(program.initial_context, Parser(contexts=tasks.ns.to_contexts()).contexts, tasks.ns, config)


def test_an_unusable_setting_completes_nothing(completion: Completion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INVOKE_FLEET_SIZE", "many")
    assert completion.candidates("inv logs --pod ") == []


@pytest.mark.parametrize("case", load_cases(__file__, "completion.yaml"))
def test_candidates(completion: Completion, case: Case) -> None:
    texts = [text for text, _ in completion.candidates(case["line"])]
    assert texts == case["all"] if "all" in case else texts[: len(case["first"])] == case["first"]
