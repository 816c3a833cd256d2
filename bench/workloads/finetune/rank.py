"""What each rank of a fine-tuning runs: `python -m bench.workloads.finetune.rank FOLDER BACKEND SILENCE_SEC STEP_SEC`.

Rank 0 reports to the parent, writes the checkpoints, and at the end the adapter. A file `stop` in the folder, or
SIGTERM, makes all ranks end after the step they are in, with a checkpoint.
"""

import importlib
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.data.inputs import InputError
from bench.data.tokenizer import load_tokenizer
from bench.harness.record import peak_rss_bytes
from bench.records import schema
from bench.records.atomic_files import sha256_of
from bench.records.paths import ADAPTER_FOLDER
from bench.workloads.distributed.rank import BACKSTOP_SEC, OneRank, main, peak_vram_bytes
from bench.workloads.finetune import training_set
from bench.workloads.finetune.checkpoints import resume
from bench.workloads.finetune.checkpoints.checkpoint import ADAPTER
from bench.workloads.finetune.rank_spec import STOP_FILE, RankSpec
from bench.workloads.finetune.steps.group import RankGroup


class FinetuneRank(OneRank):
    """One rank, from its model to the adapter."""

    def __init__(self, folder: Path, backend: str, silence_sec: float, step_sec: float) -> None:
        super().__init__(folder, backend, silence_sec, step_sec)
        self.began = time.monotonic()
        self.job = RankSpec.read(folder)
        self.training = training_set.training_of(self.trial)
        self._was_told = False
        signal.signal(signal.SIGTERM, self._on_signal)
        if self.trial.recipe != "fast":  # without it cuBLAS may add in another order each time
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def _on_signal(self, _number: int, _frame: Any) -> None:
        self._was_told = True

    def asked(self) -> bool:
        """Whether this machine is asked to stop."""
        return self._was_told or (self.folder / STOP_FILE).exists()

    def work(self) -> None:
        """Train. Raises what the stack and the training raise."""
        trial = self.trial
        with self.phase("import"):
            self.modules = torch_stack.load()
            # Imports torch, which must not come before the stack's settings.
            self.loop = importlib.import_module("bench.workloads.finetune.trainer")
            self.take_device()
            self.group = self._join()
        with self.phase("data"):
            tokenizer = load_tokenizer(Path(trial.model))
            data, _ = training_set.load(trial, lambda: tokenizer, Path(self.job.examples))
            self._same_everywhere(data.sha256)
        with self.phase("load"):
            trainer = self._trainer(data, tokenizer)
        with self.loop.deterministic(self.modules.torch, trainer.step.recipe):
            with self.phase("rehearse"):
                trainer.rehearse()
                found = self._checkpoint()
                trainer.begin(found)
                self.group.wait()
            with self.phase("train"):
                stop = trainer.run()
            with self.phase("finish"):
                self._finish(trainer, stop)
        if self.backend != "gloo" and not self.group.is_alone:  # see bench.workloads.distributed.rank
            self.modules.torch.distributed.destroy_process_group()

    def _join(self) -> RankGroup:
        torch = self.modules.torch
        if self.world_size == 1:
            return RankGroup(torch)
        rows = -(-self.training.rows_per_step // self.world_size)
        limit = timedelta(seconds=self.step_sec * rows + BACKSTOP_SEC)
        torch.distributed.init_process_group(self.backend, timeout=limit)
        side = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=self.trial.deadline_sec))
        return RankGroup(torch, self.rank, self.world_size, side)

    def _same_everywhere(self, data_sha256: str) -> None:
        """Raises InputError where ranks would train on different examples, or other ones than the parent read."""
        for rank, other in enumerate(self.group.objects((data_sha256, self.job.data_sha256, self.job.model_sha256))):
            for name, mine, theirs in (("data", data_sha256, other[0]), ("data", data_sha256, other[1])):
                if mine != theirs:
                    raise InputError(f"{name}: rank {rank} has other {name} than rank {self.rank}; copy it anew")
            if other[2] != self.job.model_sha256:
                raise InputError(f"model: rank {rank} has another model than rank {self.rank}; copy it anew")

    def _trainer(self, data: training_set.TrainingSet, tokenizer: Any) -> Any:
        trial, step = self.trial, self.load()
        peft_model = getattr(step.model, "peft_model", step.model)
        self.identity = resume.Identity.of(trial, self.job.model_sha256, data.sha256)
        world = self.loop.World(
            group=self.group,
            report=self.lines,
            move=self.signs.move,
            asked=self.asked,
            checkpoints=Path(self.job.checkpoints) if self.rank == 0 else None,
            identity=self.identity,
            began=self.began,
        )
        trainer = self.loop.Trainer(self.modules, trial, self.training, step, peft_model, tokenizer, data, world)
        count = sum(parameter.numel() for parameter in step.model.parameters() if parameter.requires_grad)
        said = (
            f"{trainer.steps:,} steps of {self.training.rows_per_step} rows; recipe {step.recipe}; training "
            f"{count:,} parameters with {step.optimizer_name}"
        )
        self.tell_step(
            step, trained=count, gradient_bytes=trainer.gradients.bytes, steps_planned=trainer.steps, log=said
        )
        return trainer

    def _checkpoint(self) -> resume.ResumePoint | None:
        """The checkpoint that the parent found, on rank 0."""
        if self.rank or self.job.resume is None:
            return None
        place = Path(self.job.resume)
        found = resume.find(place.parent, self.identity, lambda words: self.lines(log=words))
        if found is None or found.path != place:
            raise InputError(f"{place}: was whole a moment ago, and is no longer; see {place.parent}")
        self.lines(log=f"goes on from {place.name}")
        return found

    def _finish(self, trainer: Any, stop: str) -> None:
        rows = self.group.objects((peak_vram_bytes(), peak_rss_bytes()))
        percent = trainer.communication_percent()
        if self.rank == 0:
            vram = [row[0] for row in rows if row[0] is not None]
            self.lines(
                peaks={"vram_bytes": max(vram) if vram else None, "rss_bytes": max(row[1] for row in rows)},
                communication_measured_percent=percent,
                fingerprint={"step_captured": trainer.step.captured},
                checkpoints=trainer.told(),
            )
            if stop in ("finished", "early"):
                self.signs.move("answer")
                step, adapter = trainer.adapter()
                answers = trainer.answered(adapter)
                out = Path(self.job.out)
                try:
                    files = self.loop.write_adapter(out, adapter, trainer.weights.config, Path(self.trial.model))
                    digest = sha256_of(out / ADAPTER_FOLDER / ADAPTER)
                except OSError as error:  # an input: once that is put right, the last checkpoint is gone on from
                    raise InputError(f"{out}: the adapter was not written: {error.strerror}; free some room") from None
                self.lines(adapter={"step": step, "sha256": digest, "files": files}, answers=schema.to_json(answers))
            self.lines(stop=stop, seconds=trainer.state.seconds)
        self.group.wait()


if __name__ == "__main__":
    main(sys.argv[1:], FinetuneRank)
