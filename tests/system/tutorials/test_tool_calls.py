"""Every command of docs/tutorials/tool-calls.md, typed in a shell, with its kill, for four steps of the real model:

    THOROUGH=1 pytest tests/system/tutorials/test_tool_calls.py

Not covered: the installation, and 25 steps.
"""

import os

import pytest

from tests.support.documents import TUTORIALS, typed_script
from tests.support.thorough import only_thorough
from tests.system.conftest import Project
from tests.system.tutorials.conftest import complete_project, type_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), only_thorough]
PAGE = TUTORIALS / "tool-calls.md"
BEFORE = ("Tool calls from a Parquet file", "The data", "The settings")
TRAINING, AFTER = "Train, kill, resume", "Check, merge, ask"
TRAIN = "inv --config tools.yaml train"
FORCED = "\ninv --config tools.yaml adapter.merge --force"


def test_every_command_of_the_page_succeeds(bare_project: Project) -> None:
    complete_project(bare_project.folder, is_small=False)
    path = f"{bare_project.folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    bare_project.environment |= {"PATH": path, "PYTHONPATH": str(bare_project.folder), "INVOKE_TRAIN_MAX_STEPS": "4"}
    type_script(bare_project, typed_script(PAGE, *BEFORE))

    _, typed, after = typed_script(PAGE, TRAINING).partition(f"{TRAIN}\n")
    assert typed
    training = bare_project.start(*TRAIN.split()[1:])
    checkpoints = ".workers/worker-0/runs/*/checkpoints/step-*"
    bare_project.wait_until(lambda: list(bare_project.folder.glob(checkpoints)), "a checkpoint")
    bare_project.kill(training)
    bare_project.kill_trainers()
    type_script(bare_project, "set -eo pipefail\n" + after)
    assert [event["end"] for event in bare_project.events("ended")] == ["SUCCEEDED"]

    # After four steps a merge loses something, which is refused; after the page's 25 steps it is not.
    type_script(bare_project, typed_script(PAGE, AFTER).replace("\ninv --config tools.yaml adapter.merge", FORCED))
    assert (bare_project.run_folder() / "merged" / "chat_template.jinja").exists()
