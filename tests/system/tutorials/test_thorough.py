"""Every command of docs/tutorials/laptop.md, quality.md and tool-calls.md, typed in a copy of the project.

    THOROUGH=1 pytest tests/system/tutorials/test_thorough.py

The laptop's page computes everything. Of quality, trials compute nothing, and the real model is the demo's small one
under its name, trained for two steps. Tool calls are typed with their kill, for four steps of the real model.
Not covered: the installation, and blocks `by-hand`: vLLM (tests/system/adapter/test_chain.py).
"""

import os
from pathlib import Path

import pytest

from bench.records.quality import QualityRecord
from bench.records.training import TrainingRecord
from tests.support.documents import TUTORIALS, typed_script
from tests.support.thorough import only_thorough
from tests.system.conftest import Project
from tests.system.tutorials.conftest import SMALL, complete_project, type_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), only_thorough]


def test_every_command_on_a_laptop_succeeds(bare_project: Project) -> None:
    complete_project(bare_project.folder, is_small=False)
    type_script(bare_project, typed_script(TUTORIALS / "laptop.md"))
    assert (bare_project.folder / "results" / "latest" / "merged" / "SHA256SUMS").exists()


def test_every_command_about_quality_succeeds(bare_project: Project, tiny_model: Path, demo_data: Path) -> None:
    folder = bare_project.folder
    complete_project(folder)
    for name in ("models", "data"):  # the demo's files where the page's commands look, which then only verify them
        (folder / name).mkdir()
    for name in ("qlora-fleet--tiny-mistral", "HuggingFaceTB--SmolLM2-135M-Instruct"):
        (folder / "models" / name).symlink_to(tiny_model)
    (folder / "data" / "python-docs.jsonl").symlink_to(demo_data)
    bare_project.environment |= SMALL
    type_script(bare_project, typed_script(TUTORIALS / "quality.md"))
    (losses,) = (folder / "results").glob("*-recipes/quality.json")
    (check,) = QualityRecord.read(losses).checks
    assert check.is_complete
    training = folder / "results" / "latest"
    assert TrainingRecord.read(training / "training.json").score is not None
    assert (training / "merged" / "SHA256SUMS").exists()


def test_every_command_about_tool_calls_succeeds(bare_project: Project) -> None:
    page, train = TUTORIALS / "tool-calls.md", "inv --config tools.yaml train"
    complete_project(bare_project.folder, is_small=False)
    path = f"{bare_project.folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    bare_project.environment |= {"PATH": path, "PYTHONPATH": str(bare_project.folder), "INVOKE_TRAIN_MAX_STEPS": "4"}
    type_script(bare_project, typed_script(page, "Tool calls from a Parquet file", "The data", "The settings"))

    _, typed, after = typed_script(page, "Train, kill, resume").partition(f"{train}\n")
    assert typed
    training = bare_project.start(*train.split()[1:])
    checkpoints = ".workers/worker-0/runs/*/checkpoints/step-*"
    bare_project.wait_until(lambda: list(bare_project.folder.glob(checkpoints)), "a checkpoint")
    bare_project.kill(training)
    bare_project.kill_trainers()
    type_script(bare_project, "set -eo pipefail\n" + after)
    assert [event["end"] for event in bare_project.events("ended")] == ["SUCCEEDED"]

    # After four steps a merge loses something, which is refused; after the page's 25 steps it is not.
    merge = "\ninv --config tools.yaml adapter.merge"
    type_script(bare_project, typed_script(page, "Check, merge, ask").replace(merge, f"{merge} --force"))
    assert (bare_project.run_folder() / "merged" / "chat_template.jinja").exists()
