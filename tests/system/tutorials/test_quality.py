"""Every command of docs/tutorials/quality.md, typed in a shell, in a copy of the project.

Trials compute nothing, and the real model is the demo's small one under its name, trained for two steps.
Not covered: the installation, and blocks `by-hand`: vLLM (tests/system/adapter/test_chain.py).
"""

from pathlib import Path

import pytest

from bench.records.quality import QualityRecord
from bench.records.training import TrainingRecord
from tests.support.documents import TUTORIALS, typed_script
from tests.support.thorough import only_thorough
from tests.system.conftest import Project
from tests.system.tutorials.conftest import SMALL, complete_project, type_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), only_thorough]


def put_models(folder: Path, model: Path, data: Path) -> None:
    """Put the demo's files where the page's commands look for them, which then only verify them."""
    (folder / "models").mkdir()
    (folder / "data").mkdir()
    for name in ("qlora-fleet--tiny-mistral", "HuggingFaceTB--SmolLM2-135M-Instruct"):
        (folder / "models" / name).symlink_to(model)
    (folder / "data" / "python-docs.jsonl").symlink_to(data)


def test_every_command_of_the_page_succeeds(bare_project: Project, tiny_model: Path, demo_data: Path) -> None:
    folder = bare_project.folder
    complete_project(folder)
    put_models(folder, tiny_model, demo_data)
    type_script(bare_project, typed_script(TUTORIALS / "quality.md"), **SMALL)
    results = folder / "results"
    (losses,) = results.glob("*-recipes/quality.json")
    (check,) = QualityRecord.read(losses).checks
    assert check.is_complete
    training = results / "latest"
    record = TrainingRecord.read(training / "training.json")
    assert record.score is not None
    assert (training / "merged" / "SHA256SUMS").exists()
