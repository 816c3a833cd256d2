"""What rank 0 reports of a training: told on to the record and steps.jsonl as it comes, in the end to training.json."""

from pathlib import Path
from typing import Any

from bench.harness.progress import StepsFile
from bench.harness.record import Record, peak_rss_bytes
from bench.records import schema
from bench.records.result import TrialStatus
from bench.records.training import CheckpointFacts, Evaluation, SampleAnswer, TrainingRecord
from bench.records.training_data import DataReport
from bench.workloads.finetune.checkpoints.checkpoint import History, State
from bench.workloads.finetune.checkpoints.resume import Journal, ResumePoint, restarted


class TrainingLog:
    """A training over all its attempts, as far as it is known here. `stop` is rank 0's word on why it ended."""

    def __init__(
        self,
        record: Record,
        folder: Path,
        found: ResumePoint | None,
        data: DataReport,
        *,
        planned: int,
        row_tokens: int,
    ) -> None:
        self.record, self.stop = record, ""
        self._folder, self._data, self._row_tokens = folder, data, row_tokens
        before = State(step=0, seconds=0.0) if found is None else found.state
        self._history = History() if found is None else found.history
        self._evaluations, self._checkpoints = list(before.evaluations), list(before.checkpoints)
        self._seconds = before.seconds
        changed = [] if found is None else found.changed
        self._restarts = restarted(folder, record.request.attempt, before.step, changed)
        self._said: dict[str, Any] = {}
        self._so_far = StepsFile(record.request.out, record.log)  # begins with what earlier attempts have measured
        self._so_far(
            *self._history.rows(), *({"evaluation": schema.to_json(evaluation)} for evaluation in self._evaluations)
        )
        record.steps_planned, record.steps_before = planned, before.step
        record.shown |= {"restarts": len(self._restarts), "checkpoint_step": None if found is None else before.step}
        self._show_loss()

    @property
    def step(self) -> int:
        """How many steps are done."""
        return len(self._history.columns["step"])

    def take(self, line: dict[str, Any]) -> None:
        """One of rank 0's lines."""
        record = self.record
        if "step" in line:
            self._step(**line["step"])
        if "evaluation" in line:
            self._evaluated(schema.from_json(Evaluation, line["evaluation"]))
        for one in line.get("checkpoints", ()):
            self._checkpoints.append(schema.from_json(CheckpointFacts, one))
            record.shown["checkpoint_step"] = one["step"]
        record.take(line)
        if "peaks" in line:
            record.peak_rss_bytes, record.peak_vram_bytes = line["peaks"]["rss_bytes"], line["peaks"]["vram_bytes"]
        self.stop = line.get("stop", self.stop)
        self._seconds = line.get("seconds", self._seconds)
        for name in ("adapter", "answers", "communication_predicted_percent", "communication_measured_percent"):
            if line.get(name) is not None:
                self._said[name] = line[name]

    def _step(self, *, rows: int, **values: Any) -> None:
        self._history.add(**values)
        self._so_far(values)
        self._seconds += values["step_time_sec"]
        record, ranks = self.record, self.record.trial.world_size
        record.shown["useful_tokens_per_sec"] = values["tokens"] / values["step_time_sec"]
        record.add_step(
            record.steps,
            seconds=values["step_time_sec"],
            loss=values["loss"],
            samples=values["samples"] / ranks,
            tokens=round(rows * self._row_tokens / ranks),
            useful=round(values["tokens"] / ranks),
        )

    def _evaluated(self, found: Evaluation) -> None:
        self._evaluations.append(found)
        self._so_far({"evaluation": schema.to_json(found)})
        self._show_loss()
        interval = "" if found.low is None else f" [{found.low:.4f}, {found.high:.4f}]"
        change = "" if found.change is None else f", {found.change:+.4f} since the start"
        self.record.log(f"held-out loss after step {found.step}: {found.loss:.4f}{interval}{change}")

    def _show_loss(self) -> None:
        self.record.shown["validation_loss"] = self._evaluations[-1].loss if self._evaluations else None
        self.record.show()

    def write(self, end: TrialStatus, reason: str | None) -> None:
        """Write training.json. Raises OSError."""
        record, said = self.record, self._said
        adapter = said.get("adapter", {})
        Journal(self._folder).note(end=end.value if reason is None else f"{end.value}: {reason}")
        TrainingRecord(
            run_id=record.request.run_id,
            trial_id=record.request.trial_id or record.trial.trial_id,
            attempt=record.request.attempt,
            world_size=record.trial.world_size,
            status=end.value,
            reason=reason,
            stop=self.stop if self.stop != "stopped" else "",
            steps_planned=record.steps_planned,
            steps_done=self.step,
            steps=self._history.record(),
            evaluations=self._evaluations,
            checkpoints=self._checkpoints,
            restarts=self._restarts,
            answers=[schema.from_json(SampleAnswer, one) for one in said.get("answers", ())],
            data=self._data,
            adapter_step=adapter.get("step"),
            adapter_sha256=adapter.get("sha256"),
            adapter_files=adapter.get("files", {}),
            communication_predicted_percent=said.get("communication_predicted_percent"),
            communication_measured_percent=said.get("communication_measured_percent"),
            peak_vram_bytes=record.peak_vram_bytes,
            peak_rss_bytes=record.peak_rss_bytes or peak_rss_bytes(),
            seconds=self._seconds,
            fingerprint=record.fingerprint,
        ).write(record.request.out)
