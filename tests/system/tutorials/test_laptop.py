"""Every command of docs/tutorials/laptop.md, typed in a shell, in a copy of the project: THOROUGH=1 computes it all.

test_machine.py types most of these commands for small inputs. Not covered: the installation, blocks `by-hand`.
"""

import subprocess

import pytest

from tests.support.documents import TUTORIALS, typed_script
from tests.support.thorough import only_thorough
from tests.system.conftest import Project
from tests.system.tutorials.conftest import complete_project, install

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), only_thorough]


def test_every_command_of_the_page_succeeds(bare_project: Project) -> None:
    folder = bare_project.folder
    complete_project(folder, is_small=False)
    install(folder)
    done = subprocess.run(
        ("bash", "-c", typed_script(TUTORIALS / "laptop.md")),
        cwd=folder,
        env=bare_project.environment | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (folder / "results" / "latest" / "merged" / "SHA256SUMS").exists()
