"""The program of each rank: `python -m bench.workloads.finetune.rank FOLDER BACKEND SILENCE_SEC STEP_SEC`.

Rank 0 reports to the parent and writes the checkpoints and the final adapter. A file `stop` in the folder, or SIGTERM,
makes all ranks end after their current step, with a checkpoint.
"""

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.data import trial_inputs
from bench.data.inputs import InputError
from bench.data.model_folder import read_config
from bench.data.tokenizer import load_trial_tokenizer
from bench.harness.termination import WorkerGone
from bench.records import Trial, schema
from bench.records.atomic_files import sha256_of
from bench.records.paths import ADAPTER_FOLDER
from bench.workloads.finetune import resume, training_set
from bench.workloads.finetune.checkpoint import ADAPTER
from bench.workloads.finetune.finetune import EXAMPLES_FOLDER, SPEC_FILE, RankSpec
from bench.workloads.ranks.launcher import STOP_FILE
from bench.workloads.ranks.process import RankGroup, RankProcess, main
from bench.workloads.ranks.watch import TRIAL_FILE

SPEC_POLL_SEC = 0.1


class FinetuneRank(RankProcess):
    """One rank of a fine-tuning, from loading the model to the final adapter."""

    def __init__(self, folder: Path, backend: str, silence_sec: float, step_sec: float) -> None:
        super().__init__(folder, backend, silence_sec, step_sec)
        self.started = time.monotonic()
        self._was_signalled = False
        signal.signal(signal.SIGTERM, self._on_signal)
        if self._uses_stock_kernels():  # required for cuBLAS to add in the same order each time
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def _uses_stock_kernels(self) -> bool:
        """Return whether another recipe than `fast` will be built; `fast` itself sums in a fixed order."""
        if self.trial.recipe != "fast":
            return True
        config = read_config(Path(self.trial.model))
        return trial_inputs.unsupported_reason(config, self.trial, capability=None) is not None

    def _on_signal(self, _number: int, _frame: Any) -> None:
        self._was_signalled = True

    def stop_requested(self) -> bool:
        """Return True once this machine has been asked to stop."""
        return self._was_signalled or (self.folder / STOP_FILE).exists()

    def run(self) -> None:
        """Train. Raises the errors of the stack and of the training."""
        with self.phase("import"):
            self.modules = torch_stack.load()
            # This import loads torch, which must happen after the stack's settings.
            self.trainer_module = importlib.import_module("bench.workloads.finetune.trainer")
            self.select_device()
        with self.phase("data"):
            self._await_spec()
            self.group, trial = self._connect(), self.trial
            tokenizer = load_trial_tokenizer(trial)
            data = training_set.load(trial, Path(self.spec.checkpoints) / EXAMPLES_FOLDER)
            self._check_same_inputs(data.sha256)
        with self.phase("load"):
            trainer = self._make_trainer(data, tokenizer)
        with self.trainer_module.deterministic(self.modules.torch, trainer.step.recipe):
            with self.phase("rehearse"):
                trainer.rehearse()
                resume_point = self._resume_point()
                trainer.restore(resume_point)
                self.group.barrier()
            with self.phase("train"):
                stop = trainer.run()
            with self.phase("finish"):
                self._finish(trainer, stop)
        self.destroy_process_group()

    def _await_spec(self) -> None:
        """Wait until the parent has read the data, and read the spec and the trial with its derived settings."""
        while not (self.folder / SPEC_FILE).exists():
            time.sleep(SPEC_POLL_SEC)
            self.heartbeat.update("data")  # not hung
        self.spec, self.trial = RankSpec.read(self.folder), Trial.read(self.folder / TRIAL_FILE)
        self.training = training_set.training_of(self.trial)

    def _connect(self) -> RankGroup:
        if self.world_size == 1:
            return RankGroup(self.modules.torch)
        return self.init_process_group(self.step_sec * -(-self.training.rows_per_step // self.world_size))

    def _on_progress(self, activity: str, number: int) -> None:
        """Beat, and report what a long phase does now: it may evaluate before the first step."""
        if activity != self.heartbeat.phase:
            self.report(activity=activity)
        self.heartbeat.update(activity, number)

    def _check_same_inputs(self, data_sha256: str) -> None:
        """Raise InputError if the ranks' or the parent's examples or models differ."""
        digests = (data_sha256, self.spec.data_sha256, self.spec.model_sha256)
        for rank, (data, parent_data, model) in enumerate(self.group.gather_objects(digests)):
            if {data, parent_data} != {data_sha256}:
                raise InputError(f"data: rank {rank} has other data than rank {self.rank}", remedy="copy it again")
            if model != self.spec.model_sha256:
                raise InputError(f"model: rank {rank} has another model than rank {self.rank}", remedy="copy it again")

    def _make_trainer(self, data: training_set.TrainingSet, tokenizer: Any) -> Any:
        trial, step = self.trial, self.build_step()
        self.identity = resume.identify(trial, self.spec.model_sha256, data.sha256)
        context = self.trainer_module.TrainContext(
            group=self.group,
            report=self.report,
            on_progress=self._on_progress,
            stop_requested=self.stop_requested,
            checkpoints=Path(self.spec.checkpoints) if self.rank == 0 else None,
            identity=self.identity,
            started=self.started,
        )
        trainer = self.trainer_module.Trainer(self.modules, trial, step, tokenizer, data, context)
        message = (
            f"{trainer.steps:,} steps of {self.training.rows_per_step} rows; recipe {step.recipe}; training "
            f"{step.trained_parameters:,} parameters with {step.optimizer_name}"
        )
        self.report_step(step, message)
        return trainer

    def _resume_point(self) -> resume.ResumePoint | None:
        """Return the checkpoint found by the parent, verified again, on rank 0; None on other ranks."""
        if self.rank or self.spec.resume is None:
            return None
        path = Path(self.spec.resume)
        resume_point = resume.find_checkpoint(path.parent, self.identity, lambda message: self.report(log=message))
        if resume_point is None or resume_point.path != path:
            raise WorkerGone(f"{path}: changed since the parent verified it: another attempt may write there")
        self.report(log=f"resuming from {path.name}")
        return resume_point

    def _finish(self, trainer: Any, stop: str) -> None:
        self.report_peaks(self.group)
        percent = trainer.communication_percent()
        if self.rank == 0:
            self.report(
                communication_measured_percent=percent,
                fingerprint={"step_captured": trainer.step.capture_status},
                checkpoint_step=trainer.checkpoint_manager.written_step,
            )
        if stop in ("finished", "early"):
            stop = self._write_and_score(trainer, stop)
        self.report(stop=stop)
        self.group.barrier()

    def _write_and_score(self, trainer: Any, stop: str) -> str:
        """Write the final adapter, then score it. Return the reason of the end.

        A stop during the score is one of the training: the next attempt repeats what is done here, and no step.
        """
        step, adapter = self.group.broadcast_object(trainer.adapter() if self.rank == 0 else None)
        trainer.set_adapter(adapter)
        if self.rank == 0:
            self.heartbeat.update("answer")
            out = Path(self.spec.out)
            template = training_set.training_of(self.trial).data.chat_template
            files = self.trainer_module.write_adapter(out, adapter, trainer.weights, Path(self.trial.model), template)
            digest = sha256_of(out / ADAPTER_FOLDER / ADAPTER)
            self.report(adapter={"step": step, "sha256": digest, "files": files})
        try:
            score = trainer.score()
        except self.trainer_module.StopRequested:
            return "stopped"
        if score is not None:
            self.report(score=schema.to_json(score))
        return stop


if __name__ == "__main__":
    main(sys.argv[1:], FinetuneRank)
