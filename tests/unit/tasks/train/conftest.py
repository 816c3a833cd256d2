"""Settings to plan a training from."""

import json
from collections.abc import Callable

import pytest
from invoke import Context

from tasks.settings.layers import Settings, load

MakeSettings = Callable[..., Settings]


@pytest.fixture
def settings(context: Callable[..., Context]) -> MakeSettings:
    """Return the settings of four workers with these of the section train."""
    return lambda **train: load(context(text=json.dumps({"fleet": {"size": 4}, "train": train})))
