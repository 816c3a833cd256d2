"""A fine-tuning that computes nothing: checkpoints, training.json and an adapter like the real ones, without torch.

`put_into` sets it in that file's place in a copy of the project, for tests of the life of a training: its restarts, its
checkpoints' ways and its limits. Its process, record, stops, progress and result are real. A step takes STEP_SEC and
adds its number to the "weights", so that the adapter shows whether each step counts once; there is a checkpoint every
CHECKPOINT_EVERY steps. While the file `hold` is there it stays in its next step.

Over pods each machine's part has its connection to the first one, as the real one has.

Not covered: ranks, the checkpoints' real content, evaluations.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.data.inputs import InputError, Inputs
from bench.data.trial_inputs import check_trial
from bench.harness.progress import StepsFile
from bench.harness.record import Record
from bench.harness.termination import Stopped, StopSignals, WorkerGone
from bench.records import Trial
from bench.records.atomic_files import write_atomic
from bench.records.result import TrialStatus
from bench.records.run import Progress
from bench.records.training import Evaluation, Restart, TrainedSteps, TrainingRecord
from bench.workloads.distributed.multi_node import LeaderGone, LeaderLink, NodeHub, NodeList

STEP_SEC, CHECKPOINT_EVERY, TOKENS, SILENCE_SEC = 0.05, 5, 64, 5.0
HOLD = Path(__file__).with_name("hold")
ADAPTER = "adapter_model.safetensors"


def put_into(project: Path) -> Path:
    """Replace the fine-tuning of this copy of the project. Returns the file that holds a training while it exists."""
    shutil.copy(__file__, project / "bench" / "workloads" / "finetune" / "finetune.py")
    return project / "bench" / "workloads" / "finetune" / HOLD.name


def check_inputs(trial: Trial) -> Inputs:
    return check_trial(trial)


def follow(_request: object, _trial: object, machines: NodeList, stops: StopSignals) -> int:
    """Another machine's share: nothing to do until it is told to stop, or the first machine has ended."""
    try:
        with LeaderLink(machines, SILENCE_SEC) as link:
            try:
                while True:
                    time.sleep(STEP_SEC)
                    link.check()
                    stops.check()
            except Stopped:
                link.send_end({"stopped": []})
                raise
    except LeaderGone:
        return 1


@contextlib.contextmanager
def others(world_size: int, stops: StopSignals) -> Iterator[Callable[[], None]]:
    """The other machines, once all of them are there; what is given raises WorkerGone where one has ended."""
    machines = NodeList.from_environment()
    if machines is None:
        yield lambda: None
        return
    with tempfile.TemporaryDirectory() as folder, NodeHub(machines, world_size, Path(folder)) as hub:

        def check() -> None:
            for path in Path(folder).glob("failures-*.json"):
                if "gone" not in json.loads(path.read_text()):
                    raise Stopped(TrialStatus.PREEMPTED, "one of its workers was told to stop")
                raise WorkerGone(f"rank {path.stem.rpartition('-')[2]} is gone with its machine")

        while len(hub._links) < machines.count - 1:
            stops.check()
            time.sleep(STEP_SEC)
        yield check


def measure(record: Record, _: Inputs, stops: StopSignals) -> None:
    spec, folder = record.trial.training, record.request.checkpoints
    if spec is None or folder is None:
        raise InputError("a training needs its settings and --checkpoints")
    steps = spec.max_steps or 40
    done, total, found = _newest(folder)
    record.steps_planned = steps
    so_far = StepsFile(record.request.out, record.log)
    so_far(*map(_measured, range(1, done + 1)))
    restarts = [Restart(attempt=record.request.attempt, from_step=done, reason="", lost_steps=0, lost_sec=0.0)] * (
        record.request.attempt > 1
    )
    began = time.monotonic()
    with others(record.trial.world_size, stops) as look, record.timed("train"):
        stop = "finished"
        while done < steps:
            try:
                time.sleep(STEP_SEC)
                while HOLD.exists():
                    time.sleep(STEP_SEC)
                    stops.check()
                    look()
                stops.check()
                look()
            except Stopped:
                _write(folder, done, total)
                raise
            done, total = done + 1, total + done + 1
            if done % CHECKPOINT_EVERY == 0:
                _write(folder, done, total)
                found = done
            so_far(_measured(done))
            _show(record, done, steps, found)
            if spec.max_hours is not None and (time.monotonic() - began) / 3600 > spec.max_hours:
                _write(folder, done, total)
                raise Stopped(TrialStatus.PREEMPTED, f"stopped by {spec.limited_by} at step {done}")
    _finish(record, total, steps, stop, restarts)


def _newest(folder: Path) -> tuple[int, int, int | None]:
    """Steps done, the sum of their numbers, and the newest checkpoint's step."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        state = json.loads((path / "state.json").read_text())
        return state["step"], state["total"], state["step"]
    return 0, 0, None


def _write(folder: Path, step: int, total: int) -> None:
    part, place = folder / f".step-{step:08}.part", folder / f"step-{step:08}"
    if place.exists():
        return
    part.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"step": step, "total": total}).encode()
    (part / "state.json").write_bytes(text)
    facts = {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}
    write_atomic(part / "MANIFEST.json", json.dumps({"step": step, "files": {"state.json": facts}}).encode())
    os.rename(part, place)


def _show(record: Record, step: int, steps: int, checkpoint: int | None) -> None:
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


def _measured(step: int) -> dict[str, float]:
    counts = {"targets": 32, "tokens": TOKENS, "samples": 2}
    return {
        "step": step,
        "loss": 1.0 / step,
        "learning_rate": 0.1,
        "gradient_norm": 1.0,
        **counts,
        "step_time_sec": STEP_SEC,
    }


def _finish(record: Record, total: int, steps: int, stop: str, restarts: list[Restart]) -> None:
    adapter = record.request.out / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / ADAPTER).write_text(f"{total}\n")
    (adapter / "adapter_config.json").write_text("{}\n")
    rows = [_measured(step) for step in range(1, steps + 1)]
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
        steps=TrainedSteps(**{name: [row[name] for row in rows] for name in rows[0]}),
        evaluations=[
            Evaluation(step=0, loss=2.0, low=1.9, high=2.1, rows=9, targets=99, is_best=False),
            Evaluation(
                step=steps,
                loss=1.0,
                low=0.9,
                high=1.1,
                rows=9,
                targets=99,
                is_best=True,
                change=-1.0,
                change_low=-1.1,
                change_high=-0.9,
            ),
        ],
        checkpoints=[],
        restarts=restarts,
        answers=[],
        data=None,
        adapter_step=steps,
        adapter_sha256=hashlib.sha256((adapter / ADAPTER).read_bytes()).hexdigest(),
        adapter_files={path.name: path.stat().st_size for path in adapter.iterdir()},
        communication_predicted_percent=None,
        communication_measured_percent=None,
        peak_vram_bytes=None,
        peak_rss_bytes=1 << 30,
        seconds=steps * STEP_SEC,
    ).write(record.request.out)
