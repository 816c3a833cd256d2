"""Receivers of notifications: an unusable one is an error before a run starts."""

from pathlib import Path

import pytest

from tasks.clients.notify import check_receivers
from tasks.errors import UsageError
from tasks.settings.load import Settings
from tasks.settings.schema import NotifySection


def test_a_program_that_does_not_exist_is_refused_by_its_setting(tmp_path: Path) -> None:
    program = tmp_path / "notify"
    settings = Settings(root=tmp_path, notify=NotifySection(command=[str(program)]))
    with pytest.raises(UsageError, match=r"^notify\.command: .*/notify: no such program"):
        check_receivers(settings)
    program.touch(mode=0o755)
    check_receivers(settings)
