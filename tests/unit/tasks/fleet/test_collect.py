"""Every run is collected, and what is still missing is counted."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from invoke import Context

from tasks.errors import RetryableError
from tasks.fleet import collect


@pytest.mark.parametrize(
    ("names", "broken", "count"),
    [
        (["a"], {"a"}, "1 of 1 run is "),
        (["a", "b"], {"a"}, "1 of 2 runs is "),
        (["a", "b", "c"], {"a", "c"}, "2 of 3 runs are "),
    ],
)
def test_what_is_still_missing_is_counted_in_the_singular_or_the_plural(
    names: list[str],
    broken: set[str],
    count: str,
    context: Callable[..., Context],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def collect_run(_settings: object, run: SimpleNamespace, *_: object) -> None:
        if run.run_id in broken:
            raise RetryableError(f"{run.run_id}: its worker is gone")

    monkeypatch.setattr(collect, "incomplete_runs", lambda _: names)
    monkeypatch.setattr(collect, "fleet_hosts", lambda _: [])
    monkeypatch.setattr(collect, "open_run", lambda _, name: (SimpleNamespace(run_id=name), None))
    monkeypatch.setattr(collect, "collect_run", collect_run)
    with pytest.raises(RetryableError) as raised:
        collect.collect_runs(context(), None, all_runs=True)
    assert str(raised.value).startswith(count)
    assert str(raised.value).endswith(": a: its worker is gone")
