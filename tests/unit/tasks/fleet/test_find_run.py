"""Finding a run by name, and the error for a missing one."""

from pathlib import Path

import pytest

from bench.records.paths import RUN_FILE
from tasks.errors import UsageError
from tasks.fleet.run_store import find_run, point_latest_at


@pytest.mark.parametrize("name", [".", "..", "a/b", "/a", "../r", "r/", "a" * 256])
def test_a_path_is_not_a_runs_id(tmp_path: Path, name: str) -> None:
    (tmp_path / RUN_FILE).touch()
    with pytest.raises(UsageError, match="not a path"):
        find_run(tmp_path / "results", name)


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
    (tmp_path / "old").rename(tmp_path / "latest")  # as in a copy that follows links
    with pytest.raises(UsageError, match="remove it"):
        find_run(tmp_path, None)
