"""A further machine's share of the ranks: once they have ended, it does not need the first machine any more.

Not covered: ranks that still run when the first machine goes; tests/faults/bench/test_distributed_nodes.py has them.
"""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from bench.kinds.distributed import distributed
from bench.kinds.distributed.machines import LeaderGone
from tests.support.faults import raising


@pytest.mark.parametrize(("code", "told"), [(0, {}), (1, {"ranks": [], "rank": 1})])
def test_how_ranks_ended_is_told_although_the_first_machine_has_left(monkeypatch, make_trial, tmp_path, code, told):
    ended: list[Any] = []
    gone = raising(LeaderGone("the first machine has ended the trial"))
    link = SimpleNamespace(check=gone, mirror=lambda *_: None, end=ended.append)
    ranks = SimpleNamespace(folder=tmp_path, poll=lambda: code, log=lambda _: [], failures=lambda: {"rank": 1})
    monkeypatch.setattr(distributed, "Link", lambda *_: contextlib.nullcontext(link))
    monkeypatch.setattr(distributed, "Torchrun", lambda *_, **__: contextlib.nullcontext(ranks))
    monkeypatch.setattr(distributed, "choose_backend", lambda *_: "gloo")
    monkeypatch.setattr(distributed, "rendezvous", lambda: None)
    machines = SimpleNamespace(ranks_here=lambda _: range(1, 2))
    limits = SimpleNamespace(silence_sec=1.0)
    stops = SimpleNamespace(check=lambda: None)
    trial = make_trial(kind="distributed", world_size=2)
    assert (distributed.run_share(trial, machines, stops, limits, dict), ended) == (code, [told])
