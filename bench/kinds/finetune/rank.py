"""What each rank of a fine-tuning runs: `python -m bench.kinds.finetune.rank FOLDER BACKEND SILENCE_SEC STEP_SEC`.

Rank 0 reports to the parent, writes the checkpoints, and at the end the adapter. A file `stop` in the folder, or
SIGTERM, makes all ranks end after the step they are in, with a checkpoint.
"""

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench import stack
from bench.data.inputs import InputError
from bench.data.tokenizer import load_tokenizer
from bench.harness.record import peak_rss_bytes
from bench.kinds.distributed import torchrun
from bench.kinds.distributed.rank import BACKSTOP_SEC, SIGN_SEC, Lines, Signs, choose_gpu, main, peak_vram_bytes
from bench.kinds.finetune import material
from bench.kinds.finetune.checkpoints import resume
from bench.kinds.finetune.checkpoints.checkpoint import ADAPTER
from bench.kinds.finetune.job import STOP_FILE, Job
from bench.kinds.finetune.steps.group import Group
from bench.machine import fingerprint, preflight
from bench.qlora import recipes
from bench.qlora.step import load_base, place
from bench.records import Trial, schema
from bench.records.durable import sha256_of
from bench.records.layout import ADAPTER_FOLDER


class Rank:
    """One rank, from its model to the adapter."""

    def __init__(self, folder: Path, backend: str, silence_sec: float, step_sec: float) -> None:
        self.folder, self.backend, self.step_sec = folder, backend, step_sec
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.signs = Signs(folder, self.rank, min(SIGN_SEC, silence_sec / 5))
        self.lines = Lines(folder, self.rank)
        self.trial, self.job = Trial.read(folder / torchrun.TRIAL_FILE), Job.read(folder)
        self.training = material.training_of(self.trial)
        self._was_told = False
        signal.signal(signal.SIGTERM, self._on_signal)
        if backend == "nccl":
            choose_gpu(int(os.environ["LOCAL_RANK"]))
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
        with self._phase("import"):
            self.modules = stack.load()
            # Imports torch, which must not come before the stack's settings.
            self.loop = importlib.import_module("bench.kinds.finetune.loop")
            preflight.check(self.modules, trial)
            self.placement = place(self.modules)
            arithmetic = str(self.placement.compute_dtype).removeprefix("torch.")
            facts = {**fingerprint.device_facts(self.modules.torch), "compute_dtype": arithmetic}
            self.lines(fingerprint={**facts, "backend": self.backend})
            self.group = self._join()
        with self._phase("data"):
            tokenizer = load_tokenizer(Path(trial.model))
            data, _ = material.load(trial, lambda: tokenizer, Path(self.job.examples))
            self._same_everywhere(data.sha256)
        with self._phase("load"):
            trainer = self._trainer(data, tokenizer)
        with self.loop.deterministic(self.modules.torch, trainer.step.recipe):
            with self._phase("rehearse"):
                trainer.rehearse()
                found = self._checkpoint()
                trainer.begin(found)
                self.group.wait()
            with self._phase("train"):
                stop = trainer.run()
            with self._phase("finish"):
                self._finish(trainer, stop)
        if self.backend != "gloo" and not self.group.is_alone:  # see bench.kinds.distributed.rank
            self.modules.torch.distributed.destroy_process_group()

    def _join(self) -> Group:
        torch = self.modules.torch
        if self.world_size == 1:
            return Group(torch)
        rows = -(-self.training.rows_per_step // self.world_size)
        limit = timedelta(seconds=self.step_sec * rows + BACKSTOP_SEC)
        torch.distributed.init_process_group(self.backend, timeout=limit)
        side = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=self.trial.deadline_sec))
        return Group(torch, self.rank, self.world_size, side)

    def _same_everywhere(self, data_sha256: str) -> None:
        """Raises InputError where ranks would train on different examples, or other ones than the parent read."""
        for rank, other in enumerate(self.group.objects((data_sha256, self.job.data_sha256, self.job.model_sha256))):
            for name, mine, theirs in (("data", data_sha256, other[0]), ("data", data_sha256, other[1])):
                if mine != theirs:
                    raise InputError(f"{name}: rank {rank} has other {name} than rank {self.rank}; copy it anew")
            if other[2] != self.job.model_sha256:
                raise InputError(f"model: rank {rank} has another model than rank {self.rank}; copy it anew")

    def _trainer(self, data: material.Material, tokenizer: Any) -> Any:
        trial, torch = self.trial, self.modules.torch
        start = time.monotonic()
        base = load_base(self.modules, trial, self.placement)
        if self.placement.is_cuda:
            torch.cuda.synchronize()
        self.lines(load_time_sec=time.monotonic() - start)
        step = recipes.build(trial.recipe, self.modules, trial, self.placement, base)
        peft_model = getattr(step.model, "peft_model", step.model)
        self.identity = resume.Identity.of(trial, self.job.model_sha256, data.sha256)
        world = self.loop.World(
            group=self.group,
            report=self.lines,
            move=self.signs.move,
            asked=self.asked,
            checkpoints=Path(self.job.checkpoints) if self.rank == 0 else None,
            identity=self.identity,
            attempt=self.job.attempt,
        )
        trainer = self.loop.Trainer(self.modules, trial, self.training, step, peft_model, tokenizer, data, world)
        count = sum(parameter.numel() for parameter in step.model.parameters() if parameter.requires_grad)
        self.lines(
            fingerprint={
                "recipe": step.recipe,
                "recipe_notes": ", ".join(step.notes) or None,
                "optimizer": step.optimizer_name,
                "trained_parameters": count,
                "gradient_bytes": trainer.gradients.bytes,
            },
            steps_planned=trainer.steps,
            log=f"{trainer.steps:,} steps of {self.training.rows_per_step} rows; recipe {step.recipe}; training "
            f"{count:,} parameters with {step.optimizer_name}",
        )
        for flag in step.flags:
            self.lines(flag=flag)
        return trainer

    def _checkpoint(self) -> resume.Found | None:
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

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self.signs.move(name)
        self.lines(phase=name)
        start = time.monotonic()
        try:
            yield
        finally:
            self.lines(phase=name, phase_sec=time.monotonic() - start)


if __name__ == "__main__":
    main(sys.argv[1:], Rank)
