"""Finding a run by name, and the error for a missing one."""

from pathlib import Path

import pytest

from bench.records.paths import RUN_FILE
from tasks.errors import UsageError
from tasks.fleet.run_store import find_run, point_latest_at


def test_a_removed_newest_run_is_an_error_that_lists_the_others(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / RUN_FILE).touch()
        point_latest_at(tmp_path / name)
    assert find_run(tmp_path, None) == tmp_path / "new"
    (tmp_path / "new" / RUN_FILE).unlink()
    with pytest.raises(UsageError, match=r": old$"):
        find_run(tmp_path, None)
    (tmp_path / "latest").unlink()  # as in a copy of the folder without its links
    with pytest.raises(UsageError, match=r": old$"):
        find_run(tmp_path, None)
