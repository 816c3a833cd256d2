"""The life of a training from the operator's view: killed, detached, cancelled, stopped by its limits, collected.

Everything is real except the steps, which compute nothing (tests/support/hosts/fake_worker_finetune.py). The adapter is
the sum of the step numbers, so a repeated or missing step is visible. Not covered here: ranks, pods, real steps.
"""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.hosts.fake_worker_finetune import install_fake_finetune
from tests.support.pods import skewed_clock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 30
SUM_OF_STEPS = f"{STEPS * (STEPS + 1) // 2}\n"


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workers' cache of tokenized examples, shared by all tests because it takes a second."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture
def hold_file(project, examples: Path) -> Path:
    """Make the project's trainings compute nothing, and pause in their next step while this file exists."""
    for name in ("worker-0", "worker-1"):
        worker = project.folder / ".workers" / name
        worker.mkdir(parents=True)
        (worker / "examples").symlink_to(examples)
    project.environment |= {
        "INVOKE_TRAIN_MAX_STEPS": str(STEPS),
        "INVOKE_TRAIN_MAX_SEQ_LEN": "256",
        "INVOKE_COST_PRICE_USD_PER_GPU_HOUR": "360",
        "INVOKE_COST_PRICE_SOURCE": "a cent each tenth of a second",
    }
    return install_fake_finetune(project.folder)


def checkpoints(project) -> list[str]:
    return [path.name for path in sorted(project.folder.glob(".workers/worker-0/runs/*/checkpoints/step-*"))]


def collected_adapter(project) -> str:
    project.inv("collect")
    return (project.run_folder() / "adapter" / "adapter_model.safetensors").read_text()


def wait_for_checkpoint(project, name: str = "step-00000005") -> None:
    project.wait_until(lambda: name in checkpoints(project), f"checkpoint {name}")


def test_a_training_whose_operator_process_and_supervisor_are_killed_ends_with_every_step_once(
    project, hold_file: Path
) -> None:
    operator = project.start("train")
    wait_for_checkpoint(project)
    hold_file.touch()
    project.kill(operator)
    assert project.trainers(), "the training continues without its operator"

    # The next operator's clock is 7 h behind.
    library = skewed_clock(project.folder)
    second_operator = project.start("train", "--resume", LD_PRELOAD=str(library), CLOCK_OFFSET_SEC=str(-7 * 3600))
    project.kill_trainers()
    project.wait_until(lambda: project.events("retried") and project.trainers(), "another attempt")
    assert "killed by SIGKILL" in project.events("retried")[0]["reason"]

    (pid,) = project.trainers()
    for _ in ("engine", "supervisor"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    assert "`inv train --resume=" in project.wait_for_exit(second_operator, code=3)[1]
    assert project.trainers() == {}
    hold_file.unlink()
    project.inv("train", "--resume")
    assert [event["end"] for event in project.events("ended")] == ["LOST", "SUCCEEDED"]
    assert len(project.events("started")) == 3
    assert collected_adapter(project) == SUM_OF_STEPS

    sums = (project.run_folder() / "SHA256SUMS").read_text()
    assert "  adapter/adapter_model.safetensors\n" in sums
    assert "  training.json\n" in sums
    checked = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=project.run_folder(), check=False)
    assert checked.returncode == 0


def test_a_restart_has_its_cost_in_the_ledger_and_a_failure_is_resumed(project, hold_file: Path) -> None:
    operator = project.start("train")
    wait_for_checkpoint(project)
    project.kill_trainers()
    restarts = ".workers/worker-0/runs/*/checkpoints/restarts.json"
    project.wait_until(lambda: any(project.folder.glob(restarts)), "a step of the next attempt")
    hold_file.touch()
    project.wait_until(lambda: project.events("restarted"), "the cost of the restart")
    fail_file = hold_file.with_name("fail")
    fail_file.touch()
    hold_file.unlink()
    out, err = project.wait_for_exit(operator, code=1)
    assert "1 restart" in out
    assert "`inv train --resume=" in err
    (cost,) = project.events("restarted")
    assert cost["lost_sec"] > 0
    assert cost["usd"] == pytest.approx(0.2 * cost["lost_sec"], rel=0.01)
    fail_file.unlink()
    project.inv("train", "--resume")
    assert [event["attempt"] for event in project.events("started")] == [1, 2, 3]
    assert len(project.events("reopened")) == 1
    again = project.inv("train", "--resume")
    assert again.stderr == ""
    assert "nothing to resume" in again.stdout
    assert len(project.events("started")) == 3


def test_ctrl_c_detaches_and_a_cancelled_training_goes_on_to_its_limit_and_its_end(project, hold_file: Path) -> None:
    data = project.folder / "mine.jsonl"
    content = Path(project.environment["INVOKE_DATA_PATH"]).read_bytes()
    data.write_bytes(content)
    project.environment["INVOKE_DATA_PATH"] = str(data)
    operator = project.start("train", "--workers", "1")
    wait_for_checkpoint(project)
    assert f"process {operator.pid} of" in project.inv_error("cancel", code=4)
    assert "`inv train --resume=" in project.interrupt(operator)
    hold_file.touch()
    assert project.trainers()

    assert f"{project.run_folder().name}: train " in project.inv("monitor").stdout
    assert "inv train --resume=" in project.inv_error("train", code=3)
    assert "`inv train --resume=" in project.inv("cancel").stdout
    assert project.trainers() == {}
    hold_file.unlink()
    data.write_bytes(content + content.splitlines(keepends=True)[0])
    assert "mine.jsonl" in project.inv("train", "--resume", code=4).stderr
    data.write_bytes(content)
    message = project.inv_error("train", "--resume", INVOKE_TRAIN_LEARNING_RATE="0.0001")
    assert "train.learning_rate: 0.0002 as planned, 0.0001 now" in message
    limited = project.inv_error("train", "--resume", code=3, INVOKE_TRAIN_MAX_HOURS="0.00005")
    assert "stopped by train.max_hours at step" in limited
    assert "`inv train --resume=" in limited
    project.inv("train", "--resume")
    assert collected_adapter(project) == SUM_OF_STEPS
