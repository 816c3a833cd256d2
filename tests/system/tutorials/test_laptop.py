"""Every command of docs/tutorials/laptop.md, typed in a shell, in a copy of the project: THOROUGH=1 computes it all.

test_machine.py types most of these commands for small inputs. Not covered: the installation, blocks `by-hand`.
"""

import pytest

from tests.support.documents import TUTORIALS, typed_script
from tests.support.thorough import only_thorough
from tests.system.conftest import Project
from tests.system.tutorials.conftest import complete_project, type_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), only_thorough]


def test_every_command_of_the_page_succeeds(bare_project: Project) -> None:
    complete_project(bare_project.folder, is_small=False)
    type_script(bare_project, typed_script(TUTORIALS / "laptop.md"))
    assert (bare_project.folder / "results" / "latest" / "merged" / "SHA256SUMS").exists()
