"""The parent process of a fine-tuning: starts its ranks, follows them, and writes training.json.

This process uses no GPU. It reads the data before any rank is started, finds the checkpoint to resume from, and passes
a stop signal on to the ranks: they end after their current step, with a checkpoint. For every outcome, training.json
records what was trained until then.

On several machines, the first one does this; the others only run their share of the ranks (`follow`).
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from bench.data.inputs import InputError, Inputs
from bench.harness.record import Record, Request
from bench.harness.termination import Stopped, StopSignals, WorkerGone
from bench.predict.fit import fit_training
from bench.qlora.step import sized_config
from bench.records import Trial, schema
from bench.records.score import TrainingScore, TrainingTime
from bench.records.status import Outcome, ReasonCode
from bench.records.training import DataReport, DerivedSettings, Evaluation, TrainingRecord
from bench.workloads.finetune import checkpoint, resume, training_set
from bench.workloads.finetune.checkpoint import State
from bench.workloads.finetune.derived import derive
from bench.workloads.finetune.folder_lock import FolderLock
from bench.workloads.finetune.resume import ResumePoint, record_first_step, record_restart
from bench.workloads.finetune.training_set import FirstAttempt
from bench.workloads.finetune.training_set import (
    check_inputs as check_inputs,  # looked up in workload modules with special inputs
)
from bench.workloads.ranks.launcher import RankLauncher
from bench.workloads.ranks.multi_node import NodeList
from bench.workloads.ranks.watch import TRIAL_FILE, RankKilled, RankOutOfMemory, Ranks

MODULE = "bench.workloads.finetune.rank"
SPEC_FILE = "job.json"
GRACE_SEC = 22.0  # for a step and its checkpoint; a node waits 30 s between SIGTERM and SIGKILL
EXAMPLES_FOLDER = "examples"


@dataclass(frozen=True, kw_only=True)
class RankSpec:
    """The paths of this attempt's ranks, and the digests computed before they were started.

    `resume` is the checkpoint to resume from. Only rank 0 reads `resume` and `out`, and writes to `checkpoints`.
    """

    checkpoints: str
    resume: str | None
    out: str
    model_sha256: str
    data_sha256: str

    @classmethod
    def read(cls, folder: Path) -> "RankSpec":
        return schema.from_json(cls, json.loads((folder / SPEC_FILE).read_text(encoding="utf-8")), SPEC_FILE)


def _rank_files(
    request: Request, folder: Path, trial: Trial, model: str, data: str, resume_point: ResumePoint | None = None
) -> dict[str, str]:
    """Return the ranks' files, the last one with the digests of model and data."""
    spec = RankSpec(
        checkpoints=str(folder.resolve()),
        resume=None if resume_point is None else str(resume_point.path.resolve()),
        out=str(request.out.resolve()),
        model_sha256=model,
        data_sha256=data,
    )
    return {TRIAL_FILE: trial.to_text(), SPEC_FILE: json.dumps(schema.to_json(spec))}


class TrainingLog:
    """The log of a training over all its attempts. `stop` is rank 0's reason for ending, empty until then."""

    def __init__(
        self,
        record: Record,
        folder: Path,
        resume_point: ResumePoint | None,
        data: DataReport,
        examples: training_set.TrainingSet,
        derived: DerivedSettings,
    ) -> None:
        self.record, self.stop = record, ""
        self._folder, self._data = folder, data
        self._end_ids, self._derived = examples.end_tokens, derived
        before = State(step=0, seconds=0.0) if resume_point is None else resume_point.state
        self._steps = before.steps
        self._evaluations = list(before.evaluations)
        self._restarts = record_restart(folder, record.request.attempt, before.step)
        self._resumed_from = None if resume_point is None or not self._restarts else resume_point.written
        self._reported: dict[str, Any] = {}
        record.steps_planned, record.earlier_steps = examples.steps(), before.step
        record.extra_progress |= {
            "restarts": len(self._restarts),
            "checkpoint_step": None if resume_point is None else before.step,
        }
        self._show_loss()

    @property
    def step(self) -> int:
        """The number of completed steps."""
        return len(self._steps.step)

    @property
    def newest_checkpoint(self) -> str:
        """The newest checkpoint that was written, as the end of a sentence."""
        step = self.record.extra_progress["checkpoint_step"]
        return "without a checkpoint" if step is None else f"newest checkpoint: step {step}"

    def on_line(self, line: dict[str, Any]) -> None:
        """Process one of rank 0's lines."""
        record = self.record
        if "step" in line:
            self._add_step(**line["step"])
        if "evaluation" in line:
            self._add_evaluation(schema.from_json(Evaluation, line["evaluation"]))
        if line.get("checkpoint_step") is not None:
            record.extra_progress["checkpoint_step"] = line["checkpoint_step"]
        record.apply_report(line)
        self.stop = line.get("stop", self.stop)
        if "mean_score" in line:
            mean = line["mean_score"]
            record.extra_progress["score"] = "none" if mean is None else f"{mean * 100:.0f} %"
            record.publish_progress()
        for name in ("adapter", "score", "time", "communication_measured_percent"):
            if line.get(name) is not None:
                self._reported[name] = line[name]

    def _add_step(self, *, positions: int, **values: Any) -> None:
        self._steps.add(values)
        if self._resumed_from is not None:  # the first step of this attempt
            self._restarts = record_first_step(self._folder, self._restarts, self._resumed_from)
            self._resumed_from = None
        record, ranks = self.record, self.record.trial.world_size
        record.extra_progress["useful_tokens_per_sec"] = values["tokens"] / values["step_time_sec"]
        record.add_step(
            record.steps,
            seconds=values["step_time_sec"],
            loss=values["loss"],
            samples=values["samples"] / ranks,
            tokens=round(positions / ranks),
            useful=round(values["tokens"] / ranks),
        )

    def _add_evaluation(self, evaluation: Evaluation) -> None:
        self._evaluations.append(evaluation)
        self._show_loss()
        interval = "" if evaluation.low is None else f" [{evaluation.low:.4f}, {evaluation.high:.4f}]"
        change = "" if evaluation.change is None else f", {evaluation.change:+.4f} since the start"
        self.record.log(f"held-out loss after step {evaluation.step}: {evaluation.loss:.4f}{interval}{change}")

    def _show_loss(self) -> None:
        self.record.extra_progress["validation_loss"] = self._evaluations[-1].loss if self._evaluations else None
        self.record.publish_progress()

    def write(self, outcome: Outcome) -> None:
        """Write training.json. Raises OSError."""
        record, reported, steps = self.record, self._reported, self._steps
        if seconds := sum(steps.step_time_sec):  # the last progress has the speed of the whole training
            record.extra_progress["useful_tokens_per_sec"] = sum(steps.tokens) / seconds
        adapter = reported.get("adapter", {})
        TrainingRecord(
            run_id=record.request.run_id,
            trial_id=record.request.trial_id or record.trial.trial_id,
            attempt=record.request.attempt,
            world_size=record.trial.world_size,
            status=outcome.status.value,
            reason=outcome.reason,
            reason_code=outcome.reason_code,
            remedy=outcome.remedy,
            stop=self.stop if self.stop != "stopped" else "",
            steps_planned=record.steps_planned,
            steps_done=self.step,
            steps=steps,
            evaluations=self._evaluations,
            restarts=self._restarts,
            data=self._data,
            adapter_step=adapter.get("step"),
            adapter_sha256=adapter.get("sha256"),
            adapter_files=adapter.get("files", {}),
            end_ids=self._end_ids,
            derived=self._derived,
            communication_measured_percent=reported.get("communication_measured_percent"),
            peak_vram_bytes=record.peak_vram_bytes,
            fingerprint=record.fingerprint,
            score=schema.from_json(TrainingScore, reported["score"]) if "score" in reported else None,
            time=schema.from_json(TrainingTime, reported["time"]) if "time" in reported else None,
        ).write(record.request.out)


def measure(record: Record, inputs: Inputs, stops: StopSignals) -> None:
    """Train from the newest checkpoint to the end, or until stopped.

    Raises Stopped after writing a checkpoint; WorkerGone if a rank was killed, hangs, or its machine is lost;
    RankFailed and RankOutOfMemory with the rank's number; InputError; InputRejected if all checkpoints are broken or
    another attempt of this machine writes to their folder, another machine's attempt is WorkerGone.
    """
    folder = _checkpoint_folder(record.request)
    with contextlib.closing(FolderLock(folder, record.request.attempt, record.log)):
        while not _train(record, inputs, stops, folder):
            stops.reopen()


def _train(record: Record, inputs: Inputs, stops: StopSignals, folder: Path) -> bool:
    """Train; False if memory ran out before the first step and a smaller configuration is to be tried."""
    launcher = RankLauncher(record.trial, stops, NodeList.from_environment(), module=MODULE, grace_sec=GRACE_SEC)
    with launcher.started() as ranks:  # they import their libraries while this process reads the data
        return _lead(launcher, ranks, record, inputs, folder)


def _lead(launcher: RankLauncher, ranks: Ranks, record: Record, inputs: Inputs, folder: Path) -> bool:
    trial = record.trial
    with record.timed("data"):
        first, fitted = _fit(trial, folder)
        data, derived, report = derive(trial, folder / EXAMPLES_FOLDER, fitted)
        record.log(
            f"{report.examples:,} examples to train on, {report.validation_examples:,} held out, "
            f"{report.targets:,} of {report.tokens:,} tokens are targets; {report.left_out:,} skipped"
        )
        digests = {trial.model: inputs[0].sha256, **{file.path: file.sha256 for file in report.files}}
        if first is None:
            FirstAttempt(digests=digests, fitted=fitted).write(folder)
        else:
            training_set.check_digests(first.digests, digests)
    checkpoint.clear_parts(folder)
    trial = trial.with_derived(derived)
    training = training_set.training_of(trial)
    resume_point = resume.find_checkpoint(folder, resume.identify(trial, inputs[0].sha256, data.sha256), record.log)
    if resume_point is None and training.init_adapter is not None:
        resume.verify_init_adapter(training.init_adapter, training.init_sha256)
    training_log = TrainingLog(record, folder, resume_point, report, data, derived)
    record.on_finish = training_log.write
    ranks.write_files(_rank_files(record.request, folder, trial, inputs[0].sha256, data.sha256, resume_point))
    try:
        launcher.lead(ranks, record, training_log.on_line, has_stopped=lambda: bool(training_log.stop))
    except RankKilled as error:
        raise WorkerGone(str(error)) from error
    except RankOutOfMemory:
        smaller = fit_training(record.trial, sized_config, fitted)
        if training_log.step or not smaller.values:
            raise
        values = ", ".join(f"{name} {value}" for name, value in smaller.values.items())
        record.log(f"out of memory before the first step; trying {values}")
        FirstAttempt(digests=digests, fitted=smaller).write(folder)
        return False
    except Stopped:
        record.log(f"stopped after step {training_log.step}, {training_log.newest_checkpoint}")
        raise
    if training_log.stop == "max_hours":
        raise Stopped(ReasonCode.MAX_HOURS, f"stopped by train.max_hours after step {training_log.step}")
    if training_log.stop == "stopped":
        raise Stopped(
            ReasonCode.WORKER_STOPPED, f"one of its workers was told to stop; {training_log.newest_checkpoint}"
        )
    return True


def _fit(trial: Trial, folder: Path) -> tuple[FirstAttempt | None, DerivedSettings]:
    """Return the first attempt, also of the first machine if the folder is shared, and what follows from the GPU."""
    first = FirstAttempt.read(folder)
    return first, fit_training(trial, sized_config) if first is None else first.fitted


def follow(request: Request, trial: Trial, nodes: NodeList, stops: StopSignals) -> int:
    """Run this machine's share of the ranks, with inputs and examples that it checks on its own."""

    def prepare(inputs: Inputs) -> Mapping[str, str]:
        folder = _checkpoint_folder(request)
        data, derived, _ = derive(trial, folder / EXAMPLES_FOLDER, _fit(trial, folder)[1])
        return _rank_files(request, folder, trial.with_derived(derived), inputs[0].sha256, data.sha256)

    launcher = RankLauncher(trial, stops, nodes, module=MODULE, grace_sec=GRACE_SEC)
    return launcher.follow(lambda: check_inputs(trial), prepare)


def _checkpoint_folder(request: Request) -> Path:
    """Create the checkpoints' folder and return it. Raises InputError."""
    if request.checkpoints is None:
        raise ValueError("a fine-tuning without a folder for checkpoints")
    try:
        request.checkpoints.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=request.checkpoints).close()
    except OSError as error:
        raise InputError(
            f"{request.checkpoints}: cannot be written: {error.strerror}",
            remedy="make it writable, or use another folder",
        ) from error
    return request.checkpoints
