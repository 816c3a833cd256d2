"""A checkpoint is whole or not taken; the newest whole one of this training is gone on from, and nothing else."""

import dataclasses
import json
import os
import resource
from pathlib import Path

import pytest
import torch

from bench.data import model_folder
from bench.data.inputs import InputError, InputRejected
from bench.records import schema
from bench.workloads.finetune.checkpoints import checkpoint, checkpoint_manager, resume
from bench.workloads.finetune.checkpoints.checkpoint import BrokenCheckpoint, History, Manifest, State
from bench.workloads.finetune.checkpoints.resume import Identity, Journal, record_restart
from tests.support import tiny_training
from tests.support.faults import full_disk

NOW = Identity(model="a" * 64, data="b" * 64, code="c" * 64, settings={"lora_rank": 16, "training.schedule": "cosine"})
VALUES = {
    "step": 1, "loss": 2.5, "learning_rate": 1e-4, "gradient_norm": 0.1, "targets": 7, "tokens": 9, "samples": 2,
    "step_time_sec": 0.5,
}  # fmt: skip


def write(folder: Path, step: int, identity: Identity = NOW) -> Path:
    history = History()
    for number in range(1, step + 1):
        history.add(**{**VALUES, "step": number})
    state = json.dumps(schema.to_json(State(step=step, seconds=1.0))).encode()
    made_with = {name: getattr(identity, name) for name in ("model", "data", "code", "settings")}
    manifest = Manifest(format=checkpoint.FORMAT, step=step, world_size=1, files={}, **made_with)
    contents = {checkpoint.ADAPTER: b"a" * 999, checkpoint.STATE: state, checkpoint.STEPS: history.to_bytes()}
    checkpoint.write(folder, manifest, contents)
    return checkpoint.checkpoint_folder(folder, step)


def find(folder: Path, identity: Identity = NOW) -> tuple[resume.ResumePoint | None, list[str]]:
    said: list[str] = []
    return resume.find_checkpoint(folder, identity, said.append), said


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])  # a manifest's last byte is the end of its line


def test_the_newest_is_gone_on_from_with_its_history(tmp_path):
    assert find(tmp_path / "nothing") == (None, [])
    assert find(tmp_path) == (None, [])
    for step in (3, 20, 100):
        write(tmp_path, step)
    found, said = find(tmp_path)
    assert found is not None
    assert (found.state.step, found.history.to_record().step, said) == (100, list(range(1, 101)), [])


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
@pytest.mark.parametrize("name", [checkpoint.ADAPTER, checkpoint.STATE, checkpoint.STEPS, checkpoint.MANIFEST])
def test_a_damaged_one_is_named_and_the_one_before_is_taken(tmp_path, damage, name):
    write(tmp_path, 3)
    damage(write(tmp_path, 4) / name)
    found, (said,) = find(tmp_path)
    assert found is not None
    assert found.state.step == 3
    assert f"step-00000004/{name}" in said
    damage(tmp_path / "step-00000003" / name)
    with pytest.raises(InputRejected, match=r"none of its 2 checkpoints is whole .*remove the folder to begin anew"):
        find(tmp_path)


def test_another_data_model_or_setting_is_refused_field_by_field(tmp_path):
    write(tmp_path, 3)
    other = dataclasses.replace(NOW, data="d" * 64, settings={**NOW.settings, "lora_rank": 8})
    with pytest.raises(InputError, match=r"data \(sha256 bbb.*, now ddd.*\); lora_rank 16, now 8; put that back"):
        find(tmp_path, other)
    newest = write(tmp_path, 4, other)
    found, (said,) = find(tmp_path)  # one of another training lies above it
    assert found is not None
    assert (found.state.step, str(newest) in said) == (3, True)


def test_what_somebody_asked_to_change_is_named_and_gone_on_with_and_nothing_else_is(tmp_path):
    write(tmp_path, 3)
    changed = {"settings": {**NOW.settings, "training.schedule": "linear"}, "data": "d" * 64}
    asked = dataclasses.replace(NOW, **changed, may_differ=("data", "training.schedule"))
    found, (said,) = find(tmp_path, asked)
    assert found is not None
    assert found.changed == [
        "another data (sha256 bbbbbbbbbbbb, now dddddddddddd)",
        "training.schedule cosine, now linear",
    ]
    assert said.endswith("; it goes on, as somebody asked")
    with pytest.raises(InputError, match=r"made with another data .*; put that back"):
        find(tmp_path, dataclasses.replace(asked, may_differ=("training.schedule",)))
    Journal(tmp_path).append(end="CANCELLED")
    (restart,) = record_restart(tmp_path, 2, 3, found.changed)
    assert restart.changed == found.changed


def test_other_code_is_said_and_not_refused(tmp_path):
    write(tmp_path, 3)
    found, (said,) = find(tmp_path, dataclasses.replace(NOW, code="d" * 64))
    assert found is not None
    assert "written by another version of this program" in said


def test_what_decides_nothing_may_change_and_everything_else_is_compared():
    one = tiny_training.plan(Path("m"), Path("d"))
    settings = resume.settings_of(one)
    assert settings == resume.settings_of(
        dataclasses.replace(one, world_size=4, deadline_sec=9.0, model="elsewhere", offload_checkpoints=False)
    )
    assert {"lora_rank", "seed", "recipe", "optimizer", "training.epochs", "training.schedule"} <= settings.keys()
    every = {*one.to_json(), *(f"training.{name}" for name in one.to_json()["training"])}
    assert every - resume.MUTABLE_SETTINGS - settings.keys() == {"training"}


@pytest.mark.parametrize(("old", "new"), [("bf16", "bf16"), ("eight", "int8")])
def test_a_checkpoint_with_an_old_name_of_a_setting_is_continued(tmp_path, old, new):
    trial = dataclasses.replace(tiny_training.plan(Path("m"), Path("d")), matmul=new)
    now = dataclasses.replace(NOW, settings=resume.settings_of(trial))
    before = {**now.settings, "products": old}
    del before["matmul"]
    manifest = checkpoint.verify(write(tmp_path, 3))
    assert resume.differences(dataclasses.replace(manifest, settings=before), now) == {}
    before["products"] = "eight_backward"
    assert [*resume.differences(dataclasses.replace(manifest, settings=before), now)] == ["matmul"]


def test_which_layers_are_recomputed_decides_what_fast_computes():
    fast = dataclasses.replace(tiny_training.plan(Path("m"), Path("d")), recipe="fast", gradient_checkpointing=True)
    every_fourth = resume.settings_of(dataclasses.replace(fast, checkpoint_every=4))
    assert every_fourth != resume.settings_of(fast)
    assert every_fourth == resume.settings_of(dataclasses.replace(fast, checkpoint_every=4, offload_checkpoints=True))


def test_writing_again_replaces_what_fails_leaves_nothing_and_a_wrong_name_is_not_taken(tmp_path, monkeypatch):
    broken = write(tmp_path, 3)
    cut(broken / checkpoint.ADAPTER)
    write(tmp_path, 3)
    checkpoint.verify(broken)

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]
    broken.rename(tmp_path / "step-00000009")
    with pytest.raises(BrokenCheckpoint, match="its manifest is of step 3"):
        checkpoint.verify(tmp_path / "step-00000009")


def test_the_newest_and_the_best_are_kept(tmp_path):
    for step in range(1, 8):
        write(tmp_path, step)
    checkpoint.prune(tmp_path, 3, best=2)
    assert [path.name[-1] for path in checkpoint.list_checkpoints(tmp_path)] == ["7", "6", "5", "2"]
    (tmp_path / ".step-00000009.part-x").mkdir()
    checkpoint.clear_parts(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_the_next_attempt_says_what_was_lost(tmp_path):
    assert record_restart(tmp_path, 1, 0) == []
    for step in (1, 2, 3):
        Journal(tmp_path).append(step=step, sec=0.5)
    (first,) = record_restart(tmp_path, 2, 1)
    assert (first.attempt, first.from_step, first.lost_steps, first.lost_sec) == (2, 1, 2, 1.0)
    assert first.reason == "ended without a word"
    Journal(tmp_path).append(step=2, sec=0.5)
    Journal(tmp_path).append(end="PREEMPTED: stopped by SIGTERM")
    with (tmp_path / resume.JOURNAL).open("a") as file:
        file.write('{"step": 3, "se')  # cut by a power cut
    again, second = record_restart(tmp_path, 3, 2)
    assert (again, second.reason, second.lost_steps) == (first, "PREEMPTED: stopped by SIGTERM", 0)


def test_an_attempt_that_was_killed_before_its_first_step_counts_as_in_the_ledger(tmp_path):
    def said(attempt: int, changed: tuple[str, ...] = ()) -> list[tuple[int, str, int, list[str]]]:
        found = record_restart(tmp_path, attempt, 1, changed)
        return [(one.attempt, one.reason, one.lost_steps, one.changed) for one in found]

    unsaid = "ended before its first step"
    assert said(2) == [(2, unsaid, 0, [])], "the first was killed while it loaded"
    for step in (1, 2, 3):
        Journal(tmp_path).append(step=step, sec=0.5)
    every = said(5, ("seed",))  # the third and the fourth never came so far as to note anything
    assert every[1:] == [(3, "ended without a word", 2, []), (4, unsaid, 0, []), (5, unsaid, 0, ["seed"])]
    assert said(5) == every, "nothing is counted twice"


def test_attempts_typed_by_hand_count_by_what_they_noted(tmp_path):
    assert record_restart(tmp_path, 1, 0) == []
    for _ in range(2):
        Journal(tmp_path).append(step=1, sec=0.5)
        found = record_restart(tmp_path, 1, 0)
    assert [(one.attempt, one.lost_steps) for one in found] == [(1, 1), (1, 1)]


def test_too_little_room_is_refused_before_the_first_step(tmp_path):
    resume.check_free_space(tmp_path, 1)
    with pytest.raises(InputError, match="MiB free, and checkpoints need"):
        resume.check_free_space(tmp_path, 1 << 60)


def test_an_adapter_goes_with_every_file_that_the_training_read_its_template_from(tmp_path: Path):
    model = tmp_path / "model"
    model.mkdir()
    for name in model_folder.TOKENIZER_FILES:
        (model / name).write_text("{}")
    assert set(model_folder.TOKENIZER_FILES) <= checkpoint_manager.write_adapter(tmp_path, {}, "{}", model).keys()


def test_a_disk_that_takes_no_adapter_is_an_error_of_the_system(tmp_path: Path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoint_manager.write_adapter(tmp_path, {"a": torch.zeros(1000)}, "{}", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
