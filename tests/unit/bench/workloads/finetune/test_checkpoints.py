"""Checkpoints are complete or ignored; a training resumes only from its own newest complete checkpoint."""

import dataclasses
import os
import resource
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench.data import model_folder
from bench.data.inputs import InputError, InputRejected
from bench.data.tokenizer import load_tokenizer
from bench.records import schema
from bench.records.adapter import BaseRecord
from bench.records.atomic_files import sha256_of
from bench.records.checksummed import MAX_BYTES
from bench.records.score import ScoreFault
from bench.workloads.finetune import checkpoint, checkpoint_manager, resume
from bench.workloads.finetune.checkpoint import BrokenCheckpoint, Identity, State
from bench.workloads.finetune.resume import record_restart
from bench.workloads.finetune.score import RowScore, ScoredAnswers
from tests.support import tiny_training
from tests.support.faults import full_disk

pytestmark = pytest.mark.slow

NOW = Identity(model="a" * 64, data="b" * 64, code="c" * 64, settings={"lora_rank": 16, "training.schedule": "cosine"})
VALUES = {
    "step": 1, "loss": 2.5, "learning_rate": 1e-4, "gradient_norm": 0.1, "targets": 7, "tokens": 9, "samples": 2,
    "step_time_sec": 0.5,
}  # fmt: skip
WEIGHTS = SimpleNamespace(config="{}", base=BaseRecord(tensors={}, adapters=[]))


def write(folder: Path, step: int, identity: Identity = NOW) -> Path:
    state = State(step=step, seconds=1.0)
    for number in range(1, step + 1):
        state.steps.add({**VALUES, "step": number})
    checkpoint.write(folder, identity, state, {checkpoint.ADAPTER: b"a" * 999})
    return checkpoint.checkpoint_folder(folder, step)


def find(folder: Path, identity: Identity = NOW) -> tuple[resume.ResumePoint | None, list[str]]:
    messages: list[str] = []
    return resume.find_checkpoint(folder, identity, messages.append), messages


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])  # a manifest's last byte is a line break, which is not verified


def test_the_newest_checkpoint_is_resumed_with_its_history(tmp_path):
    assert find(tmp_path / "nothing") == (None, [])
    assert find(tmp_path) == (None, [])
    for step in (3, 20, 100):
        write(tmp_path, step)
    resume_point, messages = find(tmp_path)
    assert resume_point is not None
    assert (resume_point.state.step, resume_point.state.steps.step, messages) == (100, list(range(1, 101)), [])


def test_answers_before_a_training_may_be_larger_than_a_manifest(tmp_path):
    score = ScoredAnswers(key="k", answers=["a" * MAX_BYTES], scores=[RowScore(values={}, fault=ScoreFault.RAISED)])
    checkpoint.write(tmp_path, NOW, State(step=1, seconds=1.0, first_score=score), {})
    assert checkpoint.verify(tmp_path / "step-00000001").state.first_score == score


@pytest.mark.parametrize("damage", [flip_bit, truncate, Path.unlink])
@pytest.mark.parametrize("name", [checkpoint.ADAPTER, checkpoint.STEPS, checkpoint.MANIFEST])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(tmp_path, damage, name):
    write(tmp_path, 3)
    damage(write(tmp_path, 4) / name)
    resume_point, (message,) = find(tmp_path)
    assert resume_point is not None
    assert resume_point.state.step == 3
    assert f"step-00000004/{name}" in message
    damage(tmp_path / "step-00000003" / name)
    with pytest.raises(InputRejected, match=rf"^{tmp_path}: all 2 checkpoints .*step-0000000[34]/{name}"):
        find(tmp_path)


def test_other_data_or_settings_are_rejected_field_by_field(tmp_path):
    write(tmp_path, 3)
    other = dataclasses.replace(NOW, data="d" * 64, settings={**NOW.settings, "lora_rank": 8})
    with pytest.raises(InputError, match=r"data \(sha256 bbb.*, now ddd.*\); lora_rank 16, now 8; "):
        find(tmp_path, other)
    newest = write(tmp_path, 4, other)
    resume_point, (message,) = find(tmp_path)  # the newest checkpoint belongs to another training
    assert resume_point is not None
    assert (resume_point.state.step, str(newest) in message) == (3, True)
    _, messages = find(tmp_path, dataclasses.replace(other, code="d" * 64))
    assert messages[0].startswith(f"{newest}: "), "other code is logged and not rejected"


def test_every_setting_is_either_mutable_or_compared():
    trial = tiny_training.plan(Path("m"), Path("d"))
    settings = resume.settings_of(trial)
    assert settings == resume.settings_of(
        dataclasses.replace(trial, world_size=4, deadline_sec=9.0, model="elsewhere", offload_checkpoints=False)
    )
    assert {"lora_rank", "seed", "recipe", "optimizer", "training.epochs", "training.schedule"} <= settings.keys()
    document = schema.to_json(trial)
    names = {*document, *(f"training.{name}" for name in document["training"])}
    assert names - resume.MUTABLE_SETTINGS - settings.keys() == {"training"}
    fast = dataclasses.replace(trial, recipe="fast", gradient_checkpointing=True)
    assert resume.settings_of(dataclasses.replace(fast, checkpoint_every=4)) != resume.settings_of(fast)


def test_a_rewrite_replaces_a_failed_write_leaves_nothing_and_a_wrong_name_is_broken(tmp_path, monkeypatch):
    broken = write(tmp_path, 3)
    truncate(broken / checkpoint.ADAPTER)
    write(tmp_path, 3)
    checkpoint.verify(broken)

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]
    broken.rename(tmp_path / "step-00000009")
    with pytest.raises(BrokenCheckpoint, match=r"step-00000009: .* step 3$"):
        checkpoint.verify(tmp_path / "step-00000009")


def test_the_newest_and_the_best_are_kept(tmp_path):
    for step in range(1, 9):
        write(tmp_path, step)
    (tmp_path / "step-00000008" / checkpoint.MANIFEST).unlink()
    checkpoint.prune(tmp_path, 7, 3, best=2)
    assert [path.name[-1] for path in checkpoint.list_checkpoints(tmp_path)] == ["8", "7", "6", "5", "2"]
    checkpoint.prune(tmp_path, 7, 1, best=None)
    resume_point, _ = find(tmp_path)
    assert resume_point is not None
    assert resume_point.state.step == 7, "a broken checkpoint displaces none that is complete"
    (tmp_path / ".step-00000009.part-x").mkdir()
    checkpoint.clear_parts(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("attempts", "counted"),
    [
        ([(1, 0)], []),
        ([(1, 0), (2, 0), (5, 1), (5, 1)], [(2, 0), (3, 1), (4, 1), (5, 1)]),  # 3 and 4 were killed while loading
        ([(1, 0), (1, 3), (1, 5)], [(1, 3), (1, 5)]),  # started by hand
    ],
)
def test_every_attempt_but_the_first_is_counted_once(tmp_path, monkeypatch, attempts, counted):
    for attempt, from_step in attempts:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full_disk)
            record_restart(tmp_path, attempt, from_step)  # it could not be written, and is tried again
        restarts = record_restart(tmp_path, attempt, from_step)
    assert [(restart.attempt, restart.from_step) for restart in restarts] == counted
    if restarts:
        last = resume.record_first_step(tmp_path, restarts, time.time() - 90.0)[-1]
        assert last.since_checkpoint_sec == pytest.approx(90.0, abs=30.0)
        assert record_restart(tmp_path, 9, 1)[len(counted) - 1] == last, "the next attempt reads it"


def test_a_disk_without_enough_space_is_rejected_before_the_first_step(tmp_path):
    with pytest.raises(InputError, match=rf"^{tmp_path}: [\d,]+ MiB free.* 1,099,511,627,776"):
        resume.check_free_space(tmp_path, 1 << 60)


def test_a_training_goes_on_on_a_full_disk_and_tries_its_last_checkpoint_again(lab, tmp_path, monkeypatch):
    tries, waited, write_checkpoint = iter([full_disk]), threading.Event(), checkpoint.write

    def write_late(*arguments):
        assert waited.wait(60.0)
        return next(tries, write_checkpoint)(*arguments)

    monkeypatch.setattr(checkpoint, "write", write_late)
    parts = lab(training={"max_steps": 1, "evaluate_every": 0})
    trainer = parts.trainer(tmp_path)
    monkeypatch.setattr(trainer.checkpoint_manager, "_on_wait", waited.set)
    assert trainer.run() == "finished"
    assert trainer.checkpoint_manager.written_step == 1
    (flag,) = [line["flag"] for line in parts.reports if "flag" in line]
    assert "step 1 " in flag
    assert f"No space left on device: {tmp_path}" in flag


def test_an_adapter_includes_the_models_tokenizer_files_and_the_trainings_own_template(tiny_inputs, tmp_path: Path):
    template, (model, _) = "{{ messages[0].content }}", tiny_inputs
    names = {name for name in checkpoint.TOKENIZER_FILES if (model / name).exists()}
    files = checkpoint_manager.write_adapter(tmp_path, {}, WEIGHTS, model, template)
    assert names | {model_folder.TEMPLATE_FILE} <= files.keys()
    assert load_tokenizer(tmp_path / "adapter").chat_template == template != load_tokenizer(model).chat_template


def test_a_write_that_fails_raises_os_error(tmp_path: Path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=f"File too large: '{tmp_path}"):
            checkpoint_manager.write_adapter(tmp_path, {"a": torch.zeros(1000)}, WEIGHTS, tmp_path)
        assert list(tmp_path.iterdir()) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def begin_from(lab, folder: Path, **training):
    """Make a trainer that begins from the adapter in `folder`."""
    sha256 = sha256_of(folder / checkpoint.ADAPTER)
    return lab(training={"init_adapter": str(folder), "init_sha256": sha256, **training})


def adapter_bytes(trainer) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in trainer.weights.adapter.values())


def test_a_training_begins_from_an_adapter_at_step_0_and_resumes_to_the_same_bits(lab, tmp_path):
    first = lab(training={"max_steps": 2}).trainer(None)
    first.run()
    adapter = {name: tensor.clone() for name, tensor in first.weights.adapter.items()}
    checkpoint_manager.write_adapter(tmp_path, adapter, first.weights, Path(first.trial.model))
    folder, checkpoints = tmp_path / "adapter", tmp_path / "checkpoints"
    checkpoints.mkdir()
    whole = begin_from(lab, folder).trainer(None)
    whole.restore(None)
    assert adapter_bytes(whole) == adapter_bytes(first)
    assert (whole.state.step, whole.steps) == (0, 6)
    whole.run()
    parts = begin_from(lab, folder)
    killed = parts.trainer(checkpoints)
    killed.restore(None)  # and killed before its first step
    (folder / checkpoint.ADAPTER).unlink()  # the checkpoint of step 0 suffices
    resumed = parts.resumed(checkpoints)
    assert resumed.state.step == 0
    resumed.run()
    assert adapter_bytes(resumed) == adapter_bytes(whole) != adapter_bytes(first)


def test_an_adapter_that_does_not_fit_is_refused_by_file_and_tensor(lab, tmp_path):
    trainer = lab(training={"max_steps": 2}).trainer(None)
    adapter = {name: tensor.clone() for name, tensor in trainer.weights.adapter.items()}
    name = min(adapter)
    others = {
        rf"{name}: \(": {**adapter, name: adapter[name][:1]},
        f"{name}: only in the training": {key: tensor for key, tensor in adapter.items() if key != name},
        "more: only in it": {**adapter, "more": adapter[name].clone()},
    }
    for expected, tensors in others.items():
        checkpoint_manager.write_adapter(tmp_path, tensors, trainer.weights, Path(trainer.trial.model))
        path = tmp_path / "adapter" / checkpoint.ADAPTER
        with pytest.raises(InputError, match=f"^{path}: {expected}"):
            checkpoint_manager.load_init_adapter(str(path.parent), sha256_of(path), trainer.weights)
    with pytest.raises(InputRejected, match=f"^{path}: not the adapter of the plan"):
        resume.verify_init_adapter(str(path.parent), "0" * 64)
    path.write_bytes(b"x" * 99)
    with pytest.raises(InputError, match=f"^{path}: not safetensors"):
        checkpoint_manager.load_init_adapter(str(path.parent), sha256_of(path), trainer.weights)
    path.unlink()
    with pytest.raises(InputError, match=f"^{path}: .*cannot be read"):
        resume.verify_init_adapter(str(path.parent), "0" * 64)
