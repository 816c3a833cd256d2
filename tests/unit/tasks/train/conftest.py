"""Settings to plan a training from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from tasks.settings.load import Settings, load


@pytest.fixture
def settings(context: Callable[..., Context], project: Path) -> Callable[..., Settings]:
    """The settings with these of the section train."""

    def make(**train: Any) -> Settings:
        (project / "more.json").write_text(json.dumps({"train": train}))
        return load(context(str(project / "more.json")))

    return make
