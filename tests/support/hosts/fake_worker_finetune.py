"""Fake fine-tuning without torch: writes checkpoints, training.json and an adapter, and computes nothing.

`install_fake_finetune` replaces the real module in a copy of the project, for tests of restarts, transfers of
checkpoints, and limits. Process, record, stops, progress and result are real. A step takes STEP_SEC and adds its number
to the "weights", so the adapter shows whether each step was counted once. A checkpoint is written every
CHECKPOINT_EVERY steps. While the file `hold` exists, the training stays in its next step; it fails there if the file
`fail` exists.

With several nodes, each node has a connection to the first one, as in the real module.

Not covered: ranks, the checkpoints' real content, evaluations.
"""

import contextlib
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from bench.data.inputs import InputError, Inputs
from bench.harness.record import Record
from bench.harness.termination import Stopped, StopSignals, WorkerGone
from bench.records import Trial, schema
from bench.records.atomic_files import write_atomic
from bench.records.paths import RESTARTS_FILE
from bench.records.run import Progress
from bench.records.status import ReasonCode, TrialStatus
from bench.records.training import Evaluation, Restart, TrainedSteps, TrainingRecord
from bench.workloads.finetune import training_set
from bench.workloads.ranks.multi_node import LeaderGone, LeaderLink, NodeHub, NodeList

STEP_SEC, CHECKPOINT_EVERY, TOKENS, SILENCE_SEC = 0.05, 5, 64, 5.0
HOLD, FAIL = Path(__file__).with_name("hold"), Path(__file__).with_name("fail")
ADAPTER = "adapter_model.safetensors"


def install_fake_finetune(project: Path) -> Path:
    """Replace the fine-tuning of this copy of the project. Returns the file that holds a training while it exists."""
    module = project / "bench" / "workloads" / "finetune" / "finetune.py"
    module.unlink()  # it may be a hard link to the module of other copies
    shutil.copy(__file__, module)
    return project / "bench" / "workloads" / "finetune" / HOLD.name


def check_inputs(trial: Trial) -> Inputs:
    return training_set.check_inputs(trial)


def follow(_request: object, _trial: object, machines: NodeList, stops: StopSignals) -> int:
    """Run another node's part: wait until it is stopped or the first node ends."""
    try:
        with LeaderLink(machines, SILENCE_SEC) as link:
            try:
                while True:
                    time.sleep(STEP_SEC)
                    link.check()
                    stops.check()
            except Stopped as stopped:
                error = {"rank": machines.rank, "reason_code": stopped.code, "reason": str(stopped)}
                errors = [error | {"at": time.monotonic()}]
                link.send_end({"errors": errors} if stopped.code.is_worker_faulty else {"stopped": []})
                raise
    except LeaderGone:
        return 1


@contextlib.contextmanager
def node_check(world_size: int, stops: StopSignals) -> Iterator[Callable[[], None]]:
    """Wait for the other nodes; provide a function that raises WorkerGone if one of them has ended."""
    machines = NodeList.from_environment()
    if machines is None:
        yield lambda: None
        return
    with tempfile.TemporaryDirectory() as folder, NodeHub(machines, world_size, Path(folder)) as hub:

        def check() -> None:
            for failures in hub.failures:
                for error in failures.get("errors", []):
                    raise Stopped(ReasonCode(error["reason_code"]), error["reason"])
                if "gone" not in failures:
                    raise Stopped(ReasonCode.WORKER_STOPPED, "one of its workers was told to stop")
                raise WorkerGone(f"rank {failures['gone'][0]} is gone with its machine")

        while len(hub._links) < machines.count - 1:
            stops.check()
            time.sleep(STEP_SEC)
        yield check


def measure(record: Record, _inputs: Inputs, stops: StopSignals) -> None:
    spec, folder = record.trial.training, record.request.checkpoints
    if spec is None or folder is None:
        raise InputError("a training needs its settings and --checkpoints")
    folder.mkdir(parents=True, exist_ok=True)
    steps = spec.max_steps or 40
    done, total, checkpoint_step = _read_newest_checkpoint(folder)
    record.steps_planned = steps
    restarts = [Restart(attempt=record.request.attempt, from_step=done)] * (record.request.attempt > 1)
    began = time.monotonic()
    with node_check(record.trial.world_size, stops) as check_nodes, record.timed("train"):
        stop = "finished"
        while done < steps:
            try:
                time.sleep(STEP_SEC)
                while HOLD.exists():
                    time.sleep(STEP_SEC)
                    stops.check()
                    check_nodes()
                if FAIL.exists():
                    raise RuntimeError("the step has failed")
                stops.check()
                check_nodes()
            except Stopped:
                _write_checkpoint(folder, done, total)
                raise
            done, total = done + 1, total + done + 1
            if done % CHECKPOINT_EVERY == 0:
                _write_checkpoint(folder, done, total)
                checkpoint_step = done
            if restarts and restarts[0].since_checkpoint_sec is None:
                restarts = [replace(restarts[0], since_checkpoint_sec=1.0)]
                _append_restart(folder / RESTARTS_FILE, restarts[0])
            _publish_progress(record, done, steps, checkpoint_step)
            if spec.max_hours is not None and (time.monotonic() - began) / 3600 > spec.max_hours:
                _write_checkpoint(folder, done, total)
                raise Stopped(ReasonCode.MAX_HOURS, f"stopped by train.max_hours at step {done}")
    _write_results(record, total, steps, stop, restarts)


def _append_restart(path: Path, restart: Restart) -> None:
    before = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*before, schema.to_json(restart)]))


def _read_newest_checkpoint(folder: Path) -> tuple[int, int, int | None]:
    """Return the steps done, the sum of their numbers, and the newest checkpoint's step."""
    path = max(folder.glob("step-*"), default=None)
    return (0, 0, None) if path is None else (int(path.name[5:]), int(path.read_text()), int(path.name[5:]))


def _write_checkpoint(folder: Path, step: int, total: int) -> None:
    write_atomic(folder / f"step-{step:08}", str(total).encode())


def _publish_progress(record: Record, step: int, steps: int, checkpoint: int | None) -> None:
    record._progress(
        Progress(
            phase=record.phase,
            step=step,
            steps=steps,
            elapsed_sec=record.clock.elapsed(),
            loss=1.0 / step,
            validation_loss=2.0 / step,
            useful_tokens_per_sec=TOKENS / STEP_SEC,
            checkpoint_step=checkpoint,
            restarts=record.request.attempt - 1,
        )
    )


def _write_results(record: Record, total: int, steps: int, stop: str, restarts: list[Restart]) -> None:
    adapter = record.request.out / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / ADAPTER).write_text(f"{total}\n")
    (adapter / "adapter_config.json").write_text("{}\n")
    numbers, counts = list(range(1, steps + 1)), {"targets": 32, "tokens": TOKENS, "samples": 2}
    values = {"learning_rate": 0.1, "gradient_norm": 1.0, "step_time_sec": STEP_SEC, **counts}
    columns = {name: [value] * steps for name, value in values.items()}
    first = Evaluation(step=0, loss=2.0, low=1.9, high=2.1, rows=9, targets=99, is_best=False)
    changed = {"change": -1.0, "change_low": -1.1, "change_high": -0.9}
    TrainingRecord(
        run_id=record.request.run_id,
        trial_id=record.request.trial_id or "train",
        attempt=record.request.attempt,
        world_size=record.trial.world_size,
        status=TrialStatus.SUCCEEDED.value,
        reason=None,
        stop=stop,
        steps_planned=steps,
        steps_done=steps,
        steps=TrainedSteps(step=numbers, loss=[1.0 / number for number in numbers], **columns),
        evaluations=[first, replace(first, step=steps, loss=1.0, low=0.9, high=1.1, is_best=True, **changed)],
        restarts=restarts,
        data=None,
        adapter_step=steps,
        adapter_sha256=hashlib.sha256((adapter / ADAPTER).read_bytes()).hexdigest(),
        adapter_files={path.name: path.stat().st_size for path in adapter.iterdir()},
        communication_measured_percent=None,
        peak_vram_bytes=None,
    ).write(record.request.out)
