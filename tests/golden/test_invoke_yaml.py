"""invoke.yaml has every setting with its default, range and help. Write it with UPDATE_GOLDEN=1 pytest tests/golden"""

import os

from tasks.settings.sections import Sections
from tests.support.paths import ROOT
from tests.support.settings_file import render


def test_invoke_yaml_is_that_of_the_declarations() -> None:
    path, text = ROOT / "invoke.yaml", render(Sections)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
