"""Chat templates of published packages that tests read (tests/chat_templates.txt).

The packages are not imported. Without `make templates` the tests that need them skip.
"""

import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FOLDERS = [Path(sys.prefix, "chat_templates"), ROOT / ".venv/chat_templates", *map(Path, sys.path)]
TRL, AXOLOTL = "trl/chat_templates", "axolotl/utils/chat_templates/templates"


def template_text(name: str) -> str:
    """Return the text of a package's chat template. Skips the test if it is not installed."""
    for folder in FOLDERS:
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    pytest.skip(f"{name.partition('/')[0]} is not installed: make templates")
