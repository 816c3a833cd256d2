"""Every run is collected, and what is still missing is counted."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from invoke import Context

from tasks.errors import RetryableError
from tasks.fleet import collect


@pytest.mark.parametrize(
    ("names", "broken", "said"),
    [
        (["a"], {"a"}, "1 of 1 run is still not whole here: a: its worker is gone"),
        (["a", "b"], {"a"}, "1 of 2 runs is still not whole here: a: its worker is gone"),
        (["a", "b", "c"], {"a", "c"}, "2 of 3 runs are still not whole here: a: its worker is gone"),
    ],
)
def test_what_is_still_missing_is_counted_in_the_singular_or_the_plural(
    names: list[str],
    broken: set[str],
    said: str,
    context: Callable[..., Context],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bring_home(_settings: object, run: SimpleNamespace, *_: object) -> None:
        if run.run_id in broken:
            raise RetryableError(f"{run.run_id}: its worker is gone")

    monkeypatch.setattr(collect, "not_whole", lambda _: names)
    monkeypatch.setattr(collect, "workers", lambda _: [])
    monkeypatch.setattr(collect, "open_run", lambda _, name: (SimpleNamespace(run_id=name), None))
    monkeypatch.setattr(collect, "collect_run", bring_home)
    with pytest.raises(RetryableError) as raised:
        collect.collect_runs(context(), None, every=True)
    assert str(raised.value) == said
