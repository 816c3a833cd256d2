"""A machine is told to stop, and a step takes longer than it has: the training is preempted, and has not failed."""

import contextlib
import json
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.harness.record import Clock, Record, Request
from bench.harness.termination import Stopped, Stops
from bench.records.paths import PROGRESS_FILE
from bench.records.result import TrialStatus
from bench.workloads.distributed import distributed
from bench.workloads.distributed.multi_node import NodeList
from bench.workloads.distributed.torchrun import RankKilled, RankSample, RankStopped, Torchrun
from bench.workloads.finetune import finetune, training_set
from bench.workloads.finetune.rank import FinetuneRank
from bench.workloads.finetune.steps.group import RankGroup
from tests.support import tiny_training
from tests.support.faults import full_disk


@pytest.mark.parametrize(("code", "said"), [(None, {"stopped": [1]}), (0, {})])
def test_a_machine_says_whether_its_rank_could_end_its_step(tmp_path, monkeypatch, code, said):
    ended: list[dict[str, Any]] = []
    link = SimpleNamespace(check=lambda: None, mirror=lambda *_: None, end=ended.append)
    asked = iter([False, True])
    ranks = SimpleNamespace(
        folder=tmp_path, poll=lambda: code if (tmp_path / "stop").exists() else None, log=lambda _: []
    )
    monkeypatch.setattr(distributed, "Link", lambda *_: contextlib.nullcontext(link))
    monkeypatch.setattr(distributed, "Torchrun", lambda *_, **__: contextlib.nullcontext(ranks))
    monkeypatch.setattr(finetune, "check_inputs", lambda _: (SimpleNamespace(sha256="m"), None, None))
    monkeypatch.setattr(training_set, "load", lambda *_: (SimpleNamespace(sha256="d"), False))
    monkeypatch.setattr(finetune, "GRACE_SEC", 0.0)

    def check() -> None:
        if next(asked):
            raise Stopped(TrialStatus.PREEMPTED, "stopped by SIGTERM")

    request = Request(trial_file=tmp_path, out=tmp_path, checkpoints=tmp_path)
    machines = NodeList(count=2, rank=1, address="127.0.0.1", port=21000, token="word")
    trial = tiny_training.plan(tmp_path, tmp_path, world_size=2)
    with pytest.raises(Stopped):
        finetune.follow(request, trial, machines, SimpleNamespace(check=check))
    assert ended == [said]


@pytest.mark.parametrize("limit", ["train.max_hours", "train.budget_usd"])
def test_a_training_at_its_limit_names_the_setting_that_it_comes_from(tmp_path, monkeypatch, limit):
    trial = tiny_training.plan(tmp_path, tmp_path, training={"max_hours": 1.0, "limited_by": limit})
    monkeypatch.setattr(
        finetune, "_read", lambda *_: (SimpleNamespace(sha256="d", steps=lambda: 9, row_tokens=8), None)
    )
    monkeypatch.setattr(finetune, "Story", lambda *_, **__: SimpleNamespace(stop="max_hours", step=3, write=None))
    monkeypatch.setattr(finetune, "Torchrun", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(finetune, "_until_ended", lambda *_: None)
    request = Request(trial_file=tmp_path, out=tmp_path, checkpoints=tmp_path)
    record = SimpleNamespace(
        trial=trial, request=request, log=lambda _: None, timed=lambda _: contextlib.nullcontext(), on_end=None
    )
    with pytest.raises(Stopped, match=rf"^stopped by {limit} after step 3$"):
        finetune.measure(record, [SimpleNamespace(sha256="m")], Stops())


def test_ranks_whose_torchrun_is_killed_were_killed_and_have_not_failed(tmp_path):
    ranks = Torchrun.__new__(Torchrun)
    ranks.folder, ranks._process, ranks._here = tmp_path, SimpleNamespace(poll=lambda: -signal.SIGKILL), range(2)
    ranks._seen = [RankSample(sign={"phase": "train", "step": 7}, heard=0.0, moved=0.0) for _ in range(2)]
    assert isinstance(ranks.failure(), RankKilled)
    assert str(ranks.failure()) == "rank 0 was killed by SIGKILL in train step 7"
    assert ranks.failures() == {"ranks": [(0, -signal.SIGKILL), (1, -signal.SIGKILL)]}


def test_the_first_machine_calls_that_preempted(tmp_path):
    ranks = SimpleNamespace(
        folder=tmp_path, poll=lambda: 1, look=lambda: None, log=lambda _: [], hand_on=lambda _: None
    )
    words = "one of its workers was told to stop, and rank 1 had no time to end its step"
    ranks.failure = lambda: RankStopped(words)
    record = SimpleNamespace(log=lambda _: None, trial=SimpleNamespace(world_size=2))
    story = SimpleNamespace(stop="", take=lambda _: None, record=record)
    with pytest.raises(Stopped) as stopped:
        finetune._until_ended(story, ranks, None, Stops(), None)
    assert (stopped.value.end, stopped.value.reason) == (TrialStatus.PREEMPTED, words)


def test_a_disk_that_is_full_at_the_end_can_be_put_right_and_the_training_has_not_failed(tmp_path):
    rank = FinetuneRank.__new__(FinetuneRank)
    rank.rank, rank.job, rank.trial = 0, SimpleNamespace(out=tmp_path), SimpleNamespace(model="model")
    rank.group, rank.loop = RankGroup(None), SimpleNamespace(write_adapter=full_disk)
    rank.lines, rank.signs = lambda **_: None, SimpleNamespace(move=lambda _: None)
    trainer = SimpleNamespace(
        communication_percent=lambda: None, told=list, adapter=lambda: (7, {}), answered=lambda _: [],
        weights=SimpleNamespace(config=""), step=SimpleNamespace(captured=None),
    )  # fmt: skip
    with pytest.raises(InputError, match="the adapter was not written: No space left on device; free some room"):
        rank._finish(trainer, "finished")


def test_while_its_data_are_read_a_training_shows_no_steps_rather_than_a_benchmarks(tmp_path):
    record = Record(Request(trial_file=tmp_path, out=tmp_path), tiny_training.plan(tmp_path, tmp_path), Clock())
    with record.timed("data"):
        shown = json.loads((tmp_path / PROGRESS_FILE).read_text())
    assert (shown["phase"], shown["step"], shown["steps"]) == ("data", 0, 0)
