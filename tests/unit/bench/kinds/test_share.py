"""A further machine's share of the ranks: when it still needs the first machine."""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from bench.kinds.distributed import distributed
from bench.kinds.distributed.machines import LeaderGone
from tests.support.faults import raising


@pytest.fixture
def share(monkeypatch, make_trial, tmp_path) -> Any:
    """Runs a share whose ranks have these exit codes, poll by poll, after the first machine has left; what it said."""
    gone = raising(LeaderGone("the first machine has ended the trial"))

    def run(*codes: int | None) -> tuple[int, list[Any]]:
        ended: list[Any] = []
        polls = iter(codes)
        ranks = SimpleNamespace(
            folder=tmp_path, poll=lambda: next(polls, codes[-1]), log=lambda _: [], failures=lambda: {"rank": 1}
        )
        link = SimpleNamespace(check=gone, mirror=lambda *_: None, end=ended.append)
        monkeypatch.setattr(distributed, "Link", lambda *_: contextlib.nullcontext(link))
        monkeypatch.setattr(distributed, "Torchrun", lambda *_, **__: contextlib.nullcontext(ranks))
        monkeypatch.setattr(distributed, "choose_backend", lambda *_: "gloo")
        monkeypatch.setattr(distributed, "rendezvous", lambda: None)
        machines = SimpleNamespace(ranks_here=lambda _: range(1, 2))
        limits = SimpleNamespace(silence_sec=1.0)
        stops = SimpleNamespace(check=lambda: None)
        code = distributed.run_share(make_trial(kind="distributed", world_size=2), machines, stops, limits, dict)
        return code, ended

    return run


def test_how_ranks_ended_is_told_although_the_first_machine_has_left(share):
    assert share(0) == (0, [{}])
    assert share(1) == (1, [{"ranks": [], "rank": 1}])


def test_ranks_that_still_run_end_with_the_first_machine(share, capsys):
    assert share(None, 0) == (1, [])
    assert "the first machine has ended the trial; ranks 1 to 1 were ended" in capsys.readouterr().err
