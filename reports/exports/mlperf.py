"""MLPerf log, a file for each trial: each line is `:::MLLOG` and a JSON object.

The keys are those of MLPerf's llama2_70b_lora benchmark where it has one. MLPerf's tools can read the log. It cannot be
submitted: model, data and target differ.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.records.status import TrialStatus
from reports.exports.log_model import LoggedRun, Setting

FOLDER = "mlperf"
_POINT, _START, _STOP = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
_KEYS = {
    "seed": "seed",
    "lora_rank": "lora_rank",
    "lora_alpha": "lora_alpha",
    "learning_rate": "opt_base_learning_rate",
    "training.max_gradient_norm": "opt_gradient_clip_norm",
    "training.weight_decay": "opt_adamw_weight_decay",
}


def write(report: Path, runs: Sequence[LoggedRun]) -> Path:
    """Write the logs below a report's folder. Raises OSError."""
    folder = report / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for run in runs:
        (folder / f"{run.name}.log").write_text("".join(f"{line}\n" for line in log_lines(run)), encoding="utf-8")
    return folder


def log_lines(run: LoggedRun) -> Iterator[str]:
    """Yield the log of one trial or training."""
    identity = {"run_id": run.run_id, "trial_id": run.name, "worker": run.worker}
    yield _format_line(
        run.start_time, _POINT, "submission_benchmark", "qlora-fleet", **identity, configuration=run.configuration
    )
    yield _format_line(run.start_time, _START, "init_start")
    for name, key in _KEYS.items():
        if name in run.settings:
            yield _format_line(run.start_time, _POINT, key, run.settings[name])
    for key, value in _batch_settings(run).items():
        yield _format_line(run.start_time, _POINT, key, value)
    first_point = next((point for point in run.points if point.phase != "warmup"), None)
    yield _format_line(run.start_time, _STOP, "init_stop")
    yield _format_line(run.start_time if first_point is None else first_point.time, _START, "run_start")
    samples = 0.0
    for point in run.points:
        samples += point.values.get("samples", 0.0)
        position = {"step_num": point.step, "samples_count": samples}
        if point.phase == "held_out":
            loss = point.values.get("loss")
            yield _format_line(point.time, _POINT, "eval_accuracy", loss, **position)  # MLPerf's key for the loss
        else:
            yield _format_line(point.time, _POINT, "tracked_stats", dict(point.values), **position, phase=point.phase)
    if run.end_time is not None:
        status = "success" if run.status == TrialStatus.SUCCEEDED.value else "aborted"
        yield _format_line(run.end_time, _STOP, "run_stop", None, status=status, end=run.status, samples_count=samples)


def _batch_settings(run: LoggedRun) -> dict[str, Setting]:
    """Return the batch of a step: a training's packed rows over all ranks, or a trial's samples on one device."""
    length = "max_sequence_length"
    if (rows := run.settings.get("training.rows_per_step")) is not None:
        return {"global_batch_size": rows, length: run.settings["training.data.max_seq_len"]}
    micro_batch, accumulation = int(run.settings["micro_batch_size"]), int(run.settings["gradient_accumulation_steps"])
    return {
        "global_batch_size": micro_batch * accumulation,
        "gradient_accumulation_steps": accumulation,
        length: run.settings["max_seq_len"],
    }


def _format_line(seconds: float, kind: str, key: str, value: Any = None, **metadata: Any) -> str:
    document = {"namespace": "", "time_ms": round(seconds * 1000), "event_type": kind, "key": key, "value": value}
    return f":::MLLOG {json.dumps({**document, 'metadata': metadata}, allow_nan=False)}"
