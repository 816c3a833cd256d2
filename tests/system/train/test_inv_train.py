"""The life of a training as an operator meets it: killed, left, cancelled, stopped by its limits, collected.

Everything is real but the steps, which compute nothing (tests/support/hosts/fake_worker_finetune.py). Its adapter is the
sum of the numbers of its steps: one that was repeated or left out shows. Not covered here: ranks, pods, real steps.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bench.records import choose, suite
from bench.records.run import RunRecord
from bench.records.training import TrainingRecord
from tests.support.hosts.fake_worker_finetune import put_into
from tests.support.pods import skewed_clock
from tests.support.thorough import only_thorough

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 30
SUM_OF_STEPS = f"{STEPS * (STEPS + 1) // 2}\n"


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What workers make of the data, which is the same for all tests and takes each a second."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture
def hold(project, examples: Path) -> Path:
    """The project's trainings compute nothing, and each stays in its next step while this file is there."""
    worker = project.folder / ".workers" / "worker-0"
    worker.mkdir(parents=True)
    (worker / "examples").symlink_to(examples)
    project.environment |= {
        "INVOKE_TRAIN_MAX_STEPS": str(STEPS),
        "INVOKE_TRAIN_MAX_SEQ_LEN": "256",
        "INVOKE_COST_PRICE_USD_PER_GPU_HOUR": "360",
        "INVOKE_COST_PRICE_SOURCE": "a cent each tenth of a second",
    }
    return put_into(project.folder)


def checkpoints(project) -> list[str]:
    return [path.name for path in sorted(project.folder.glob(".workers/worker-0/runs/*/checkpoints/step-*"))]


def adapter_of(project) -> str:
    project.inv("collect")
    return (project.run_folder() / "adapter" / "adapter_model.safetensors").read_text()


def under_way(project, name: str = "step-00000005") -> None:
    project.wait_until(lambda: name in checkpoints(project), f"checkpoint {name}")


def test_a_training_whose_operator_and_process_are_killed_ends_with_every_step_once(project, hold: Path) -> None:
    operator = project.start("train")
    under_way(project)
    hold.touch()
    project.kill(operator)
    assert project.trainers(), "the training goes on without its operator"

    # Whoever follows it now has a clock that is 7 h behind.
    library = skewed_clock(project.folder)
    followed = project.start("train", "--resume", LD_PRELOAD=str(library), CLOCK_OFFSET_SEC=str(-7 * 3600))
    project.kill_trainers()
    hold.unlink()
    project.ended(followed, within_sec=120)
    assert [event["end"] for event in project.events("ended")] == ["SUCCEEDED"]
    assert len(project.events("started")) == 2
    assert "killed by SIGKILL" in project.events("retried")[0]["reason"]
    assert adapter_of(project) == SUM_OF_STEPS

    sums = (project.run_folder() / "SHA256SUMS").read_text()
    assert "  adapter/adapter_model.safetensors\n" in sums
    assert "  training.json\n" in sums
    checked = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=project.run_folder(), check=False)
    assert checked.returncode == 0
    again = project.inv("train", "--resume")
    assert again.stderr == ""
    assert "nothing to resume" in again.stdout


def test_what_a_restart_cost_is_in_the_ledger(project, hold: Path) -> None:
    project.environment["INVOKE_TRAIN_MAX_STEPS"] = "300"  # long enough after the restart to be heard of twice
    operator = project.start("train")
    under_way(project)
    hold.touch()
    project.wait_until(lambda: any(one.get("checkpoint_step") for one in project.progress()), "its progress to say so")
    project.kill_trainers()
    hold.unlink()
    out, _ = project.ended(operator, within_sec=120)
    (cost,) = project.events("restarted")
    assert cost["workers"] == 2
    assert cost["lost_sec"] > 0
    assert cost["usd"] == pytest.approx(0.2 * cost["lost_sec"], rel=0.01)
    assert "1 restart" in out


def test_ctrl_c_leaves_the_training_alone_and_cancel_stops_it_with_a_checkpoint(project, hold: Path) -> None:
    operator = project.start("train")
    under_way(project)
    assert "it goes on without being followed; `inv train --resume=" in project.interrupt(operator)
    hold.touch()
    assert project.trainers()

    shown = project.inv("tensorboard", "--once").stdout.strip()
    (events,) = (project.folder / shown / "train").iterdir()
    assert events.read_bytes().count(b"train/loss") >= 5  # so far, though nobody follows it

    assert "inv train --resume=" in project.refused("train", code=3)
    assert "`inv train --resume=" in project.inv("cancel").stdout
    assert project.trainers() == {}
    hold.unlink()
    project.inv("train", "--resume")
    assert adapter_of(project) == SUM_OF_STEPS


def test_a_training_stops_at_its_budget_and_goes_on_with_a_larger_one(project, hold: Path) -> None:
    limited = project.refused("train", "--workers", "1", code=3, INVOKE_TRAIN_BUDGET_USD="0.05")
    assert "stopped by train.budget_usd at step" in limited
    assert "raise that, then `inv train --resume=" in limited
    assert len(project.events("started")) == 1
    project.inv("train", "--resume", code=3, INVOKE_TRAIN_BUDGET_USD="0.05")
    project.inv("train", "--resume")
    assert adapter_of(project) == SUM_OF_STEPS
    assert not hold.exists()


def test_restarts_end_with_max_restarts_and_the_command_that_goes_on(project, hold: Path) -> None:
    hold.touch()
    operator = project.start("train", INVOKE_TRAIN_MAX_RESTARTS="1")
    for number in (1, 2):
        project.wait_until(lambda n=number: len(project.events("started")) == n and project.trainers(), "an attempt")
        project.kill_trainers()
    assert "goes on from its last checkpoint" in project.ended(operator, code=3)[1]
    hold.unlink()
    project.inv("train", "--resume")


def test_what_changed_meanwhile_stops_the_resume_unless_asked_for(project, hold: Path) -> None:
    data = project.folder / "mine.jsonl"
    shutil.copy(project.environment["INVOKE_DATA_PATH"], data)
    more = project.folder / "more.json"
    more.write_text(json.dumps({"train": {"data": [str(data)]}}))
    project.options = ("-f", str(more))
    hold.touch()
    operator = project.start("train")
    project.wait_until(project.trainers, "it to begin")
    away = data.rename(project.folder / "away.jsonl")
    project.kill_trainers()
    _, err = project.ended(operator, code=2)
    assert "mine.jsonl: cannot be read" in err
    assert "Once that is put right, `inv train --resume=" in err
    away.rename(data)
    operator = project.start("train", "--resume")
    project.wait_until(project.trainers, "it to go on")
    project.interrupt(operator)
    project.inv("cancel")
    with data.open("a") as file:
        file.write('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    refused = project.refused("train", "--resume", code=4)
    assert "mine.jsonl is not what it was when the training began" in refused
    assert "--changed`" in refused
    slower = project.refused("train", "--resume", INVOKE_TRAIN_LEARNING_RATE="0.0001")
    assert "train.learning_rate: 0.0002 as planned, 0.0001 now; put it back" in slower
    hold.unlink()
    project.inv("train", "--resume", "--changed", INVOKE_TRAIN_LEARNING_RATE="0.0001")
    *_, opened = project.events("reopened")
    assert [words.partition(":")[0] for words in opened["changed"]] == [
        "train.learning_rate",
        f"{data} is not what it was",
    ]
    trial = RunRecord.read(project.run_folder() / "run.json").planned[0].trial
    assert trial.learning_rate == 0.0001
    assert trial.training is not None
    assert trial.training.may_differ == ("data", "learning_rate")


@only_thorough
@pytest.mark.usefixtures("hold")
@pytest.mark.parametrize("seed", range(1, 6))
def test_killed_at_moments_of_a_seed_every_step_counts_once(project, seed: int) -> None:
    """What a killed rank changes is shown with real ones: test_finetune_ranks.py, test_real_model.py."""
    chooser, steps = random.Random(seed), 600
    project.environment["INVOKE_TRAIN_MAX_STEPS"] = str(steps)
    operator = project.start("train")

    def trial() -> int:
        found = lambda: [pid for pid, words in project.trainers().items() if "supervisor" not in " ".join(words)]  # noqa: E731
        return min(project.wait_until(found, "its process"))

    def supervisor() -> int:
        return int(Path(f"/proc/{trial()}/stat").read_text().rpartition(")")[2].split()[1])

    def followed_anew() -> None:
        nonlocal operator
        project.kill(operator)
        operator = project.start("train", "--resume")

    strikes = [
        followed_anew,
        lambda: os.kill(trial(), signal.SIGKILL),
        lambda: os.kill(trial(), signal.SIGTERM),
        lambda: os.kill(supervisor(), signal.SIGKILL),
    ] * 2
    chooser.shuffle(strikes)
    for strike in strikes:
        before = checkpoints(project)
        project.wait_until(lambda before=before: checkpoints(project)[-1:] > before[-1:], "it to go on")
        time.sleep(chooser.uniform(0.0, 1.0))
        strike()
    project.ended(operator, within_sec=300)
    assert [event["end"] for event in project.events("ended")] == ["SUCCEEDED"]
    assert len(project.events("started")) == 7
    assert adapter_of(project) == f"{steps * (steps + 1) // 2}\n"


@only_thorough
@pytest.mark.usefixtures("forked_trials")
def test_data_that_changes_at_moments_of_five_seeds_is_not_gone_on_with(project) -> None:
    """Real steps. The file is another one when a killed training starts again, and then is what it was."""
    data = project.folder / "mine.jsonl"
    content = Path(project.environment["INVOKE_DATA_PATH"]).read_bytes()
    data.write_bytes(content)
    real = {"max_steps": 40, "max_seq_len": 64, "micro_batch_size": 1, "rows_per_step": 1, "checkpoint_sec": 0.0}
    (project.folder / "real.json").write_text(json.dumps({"train": {"data": [str(data)], **real}}))
    project.options = ("-f", "real.json")
    project.environment["INVOKE_FLEET_SIZE"] = "1"
    project.inv("train")
    quiet = TrainingRecord.read(project.run_folder() / "training.json")
    for seed in range(1, 6):
        chooser = random.Random(seed)
        step, place = chooser.randrange(1, 30), chooser.randrange(len(content) // 4, len(content) // 2)
        cut, without_its_head = content[:place], content[content.index(b"\n", place) + 1 :]
        operator = project.start("train")
        project.wait_until(
            lambda step=step: any((one.get("step") or 0) >= step for one in project.progress()), f"step {step}"
        )
        data.write_bytes(chooser.choice((cut, without_its_head)))
        project.kill_trainers()
        _, err = project.ended(operator, code=2, within_sec=120)
        assert len(project.events("started")) == 2, err
        assert "mine.jsonl: " in err or "made with another data" in err
        data.write_bytes(content)
        project.inv("train", "--resume")
        found = TrainingRecord.read(project.run_folder() / "training.json")
        assert (found.adapter_sha256, found.steps.loss) == (quiet.adapter_sha256, quiet.steps.loss)
        assert found.restarts


def test_what_cannot_be_is_refused_in_one_line_and_nothing_begins(project, hold: Path) -> None:
    few, trial = project.folder / "few.jsonl", project.folder / "best.json"
    few.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "c", "completion": "d"}\n')
    elsewhere = choose(suite("quick", "tiny", "elsewhere", "data"), ("optimized",))[0]
    trial.write_text(elsewhere.to_text())
    cases: list[tuple[tuple[str, ...], dict[str, str], str]] = [
        (("--workers", "3"), {}, "train: --workers: 3 workers, but the fleet has 2"),
        (("--trial", "best.json"), {}, "is for the model elsewhere"),
        ((), {"INVOKE_TRAIN_MAX_HOURS": "soon"}, "train.max_hours: expected a number above 0"),
        ((), {"INVOKE_TRAIN_MAX_SEQ_LEN": "100000"}, "max_seq_len: 100000 is more than the"),
        ((), {"INVOKE_DATA_PATH": str(few)}, "no example is held out for validation; raise train.validation"),
        ((), {"INVOKE_DATA_PATH": "/dev/zero"}, "not a regular file"),
        ((), {"INVOKE_MODEL_PATH": str(project.folder)}, "config.json"),
        (("--resume",), {}, "there is no run yet"),
    ]
    for words, environment, message in cases:
        assert message in project.refused("train", *words, **environment)
    assert list(project.folder.glob("results/*-train")) == []
    assert not hold.exists()
