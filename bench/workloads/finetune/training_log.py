"""Rank 0's log of a training: streamed to the record and steps.jsonl, summarised in training.json."""

from pathlib import Path
from typing import Any

from bench.harness.record import Record, StepsFile, peak_rss_bytes
from bench.records import schema
from bench.records.status import Outcome
from bench.records.training import CheckpointFacts, DataReport, Evaluation, SampleAnswer, TrainingRecord
from bench.workloads.finetune.checkpoint import History, State
from bench.workloads.finetune.resume import Journal, ResumePoint, record_restart


class TrainingLog:
    """The log of a training over all its attempts. `stop` is rank 0's reason for ending, empty until then."""

    def __init__(
        self,
        record: Record,
        folder: Path,
        resume_point: ResumePoint | None,
        data: DataReport,
        *,
        planned: int,
        row_tokens: int,
    ) -> None:
        self.record, self.stop = record, ""
        self._folder, self._data, self._row_tokens = folder, data, row_tokens
        before = State(step=0, seconds=0.0) if resume_point is None else resume_point.state
        self._history = History() if resume_point is None else resume_point.history
        self._evaluations, self._checkpoints = list(before.evaluations), list(before.checkpoints)
        self._seconds = before.seconds
        changed = [] if resume_point is None else resume_point.changed
        self._restarts = record_restart(folder, record.request.attempt, before.step, changed)
        self._reported: dict[str, Any] = {}
        self._steps_file = StepsFile(record.request.out, record.log)  # starts with the earlier attempts' steps
        self._steps_file(
            *self._history.rows(), *({"evaluation": schema.to_json(evaluation)} for evaluation in self._evaluations)
        )
        record.steps_planned, record.earlier_steps = planned, before.step
        record.extra_progress |= {
            "restarts": len(self._restarts),
            "checkpoint_step": None if resume_point is None else before.step,
        }
        self._show_loss()

    @property
    def step(self) -> int:
        """The number of completed steps."""
        return len(self._history.columns["step"])

    def on_line(self, line: dict[str, Any]) -> None:
        """Process one of rank 0's lines."""
        record = self.record
        if "step" in line:
            self._add_step(**line["step"])
        if "evaluation" in line:
            self._add_evaluation(schema.from_json(Evaluation, line["evaluation"]))
        for facts in line.get("checkpoints", ()):
            self._checkpoints.append(schema.from_json(CheckpointFacts, facts))
            record.extra_progress["checkpoint_step"] = facts["step"]
        record.apply_report(line)
        if "peaks" in line:
            record.peak_rss_bytes, record.peak_vram_bytes = line["peaks"]["rss_bytes"], line["peaks"]["vram_bytes"]
        self.stop = line.get("stop", self.stop)
        self._seconds = line.get("seconds", self._seconds)
        for name in ("adapter", "answers", "communication_predicted_percent", "communication_measured_percent"):
            if line.get(name) is not None:
                self._reported[name] = line[name]

    def _add_step(self, *, rows: int, **values: Any) -> None:
        self._history.add(**values)
        self._steps_file(values)
        self._seconds += values["step_time_sec"]
        record, ranks = self.record, self.record.trial.world_size
        record.extra_progress["useful_tokens_per_sec"] = values["tokens"] / values["step_time_sec"]
        record.add_step(
            record.steps,
            seconds=values["step_time_sec"],
            loss=values["loss"],
            samples=values["samples"] / ranks,
            tokens=round(rows * self._row_tokens / ranks),
            useful=round(values["tokens"] / ranks),
        )

    def _add_evaluation(self, evaluation: Evaluation) -> None:
        self._evaluations.append(evaluation)
        self._steps_file({"evaluation": schema.to_json(evaluation)})
        self._show_loss()
        interval = "" if evaluation.low is None else f" [{evaluation.low:.4f}, {evaluation.high:.4f}]"
        change = "" if evaluation.change is None else f", {evaluation.change:+.4f} since the start"
        self.record.log(f"held-out loss after step {evaluation.step}: {evaluation.loss:.4f}{interval}{change}")

    def _show_loss(self) -> None:
        self.record.extra_progress["validation_loss"] = self._evaluations[-1].loss if self._evaluations else None
        self.record.publish_progress()

    def write(self, outcome: Outcome) -> None:
        """Write training.json. Raises OSError."""
        record, reported = self.record, self._reported
        adapter = reported.get("adapter", {})
        status, reason = outcome.status.value, outcome.reason
        Journal(self._folder).append(
            end=status if reason is None else f"{status}: {reason}", reason_code=outcome.reason_code
        )
        TrainingRecord(
            run_id=record.request.run_id,
            trial_id=record.request.trial_id or record.trial.trial_id,
            attempt=record.request.attempt,
            world_size=record.trial.world_size,
            status=status,
            reason=reason,
            reason_code=outcome.reason_code,
            remedy=outcome.remedy,
            stop=self.stop if self.stop != "stopped" else "",
            steps_planned=record.steps_planned,
            steps_done=self.step,
            steps=self._history.to_record(),
            evaluations=self._evaluations,
            checkpoints=self._checkpoints,
            restarts=self._restarts,
            answers=[schema.from_json(SampleAnswer, answer) for answer in reported.get("answers", ())],
            data=self._data,
            adapter_step=adapter.get("step"),
            adapter_sha256=adapter.get("sha256"),
            adapter_files=adapter.get("files", {}),
            communication_predicted_percent=reported.get("communication_predicted_percent"),
            communication_measured_percent=reported.get("communication_measured_percent"),
            peak_vram_bytes=record.peak_vram_bytes,
            peak_rss_bytes=record.peak_rss_bytes or peak_rss_bytes(),
            seconds=self._seconds,
            fingerprint=record.fingerprint,
        ).write(record.request.out)
