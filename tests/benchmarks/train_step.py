"""A complete training against the bare step of the same recipe; a checkpoint's stall; a resume from one.

    python -m tests.benchmarks.train_step [--model DIR] [--recipe fast] [--matmul bf16] [--steps 60] [--json FILE]

On a GPU the model is one of any size with random weights (`python -m tests.model_shapes DIR` makes 7B's shape); without
--model, and on a CPU, the demo's small one. Data is made here: chats whose lengths are log-normal, packed.

Both sides train on the same rows, one row a step, in alternating blocks. Bare: forward, backward, clipping, update
and the loss read, as a benchmark trial does. Complete: `Trainer.run` of a fine-tuning (seeds by row,
scaling, flat gradients, checks, history, reports, checkpoints of `--checkpoint-sec`), with its own thread writing to
this disk. The ratio is of useful tokens a second.

Also: one training twice, whose adapters must be equal bit by bit, and the same after a stop in the middle.

Not covered: several ranks; reading the data; loading the model.
"""

import argparse
import dataclasses
import hashlib
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.data.dataset import Dataset
from bench.data.example_file import ExampleWriter
from bench.data.masking import Example
from bench.qlora import recipes
from bench.qlora.step import Placement, choose_placement
from bench.records import Trial
from bench.records.bootstrap import summarize
from bench.records.training import Training, TrainingData
from bench.records.validation import ALL_LINEAR
from bench.workloads.finetune import checkpoint, resume, training_set
from bench.workloads.finetune import trainer as trainer_module
from bench.workloads.ranks.process import RankGroup
from tests.benchmarks import Figure, a_trial, demo_inputs, print_figures, spread

BLOCKS = 6
CLIPPED_AT = 1.0


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_step")
    parser.add_argument("--model", help="default: the demo's small model, made for this")
    parser.add_argument("--recipe", default="fast")
    parser.add_argument("--matmul", default="bf16", help="bf16, int8_backward or int8")
    parser.add_argument("--steps", type=int, default=60, help="of each side")
    parser.add_argument("--checkpoint-sec", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    if arguments.steps < 2 * BLOCKS:
        parser.error(f"--steps: at least {2 * BLOCKS}, two for each of {BLOCKS} blocks; found {arguments.steps}")
    modules = torch_stack.load()
    placement = choose_placement(modules)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        model = arguments.model or demo_inputs(here)[0]
        built = {"recipe": arguments.recipe, "matmul": arguments.matmul}
        bench = Bench(modules, placement, model, built, arguments.steps, here)
        figures, record = bench.overhead(arguments.checkpoint_sec)
        more, others = bench.promise()
    if arguments.json:
        arguments.json.write_text(json.dumps(record | others, indent=1))
    return [*figures, *more]


class Bench:
    """One device, one model folder."""

    def __init__(
        self,
        modules: torch_stack.Stack,
        placement: Placement,
        model: str,
        built: dict[str, str],
        steps: int,
        here: Path,
    ) -> None:
        self.modules, self.torch, self.placement = modules, modules.torch, placement
        self.model, self.built, self.steps, self.here = model, built, steps, here
        self.tokens = 512 if placement.is_cuda else 64
        self.batch = 8 if placement.is_cuda else 2

    def trial(self, **training: Any) -> Trial:
        files = TrainingData(files=["made"], weights=[1.0], max_seq_len=self.tokens)
        return a_trial(
            "train", self.model, is_cuda=self.placement.is_cuda, data="made", kind="finetune",
            max_seq_len=self.tokens, **self.built, micro_batch_size=self.batch, lora_targets=ALL_LINEAR,
            optimizer="paged_adamw_8bit", training=Training(data=files, **{"rows_per_step": 1, **training}),
        )  # fmt: skip

    def material(self, trial: Trial) -> training_set.TrainingSet:
        """Make examples of log-normal lengths, half of their tokens targets; enough for every step once."""
        chooser = random.Random(3)
        vocabulary = json.loads((Path(self.model) / "config.json").read_text())["vocab_size"]
        positions, line = 0, 0
        with tempfile.TemporaryFile() as file:
            writer = ExampleWriter(file)
            while positions < 2.2 * self.steps * self.tokens * self.batch:
                length = max(8, min(self.tokens, round(chooser.lognormvariate(0.0, 0.7) * 0.4 * self.tokens)))
                ids = array("I", chooser.choices(range(3, vocabulary), k=length))
                targets = bytes(length // 2) + b"\1" * (length - length // 2)
                line, positions = line + 1, positions + length
                writer.add(Example(file="made", line=line, ids=ids, targets=targets), 1)
            training, validation = writer.finish()
        data = Dataset(files=[], training=training, validation=validation, findings=[], left_out=0, shown=[])
        return training_set.TrainingSet.from_trial(trial, data)

    def trainer(self, trial: Trial, folder: Path) -> trainer_module.Trainer:
        folder.mkdir(parents=True, exist_ok=True)
        data = self.material(trial)
        step = recipes.load(self.modules, trial, self.placement)
        tokenizer = type("Tokenizer", (), {"pad_token_id": 0, "eos_token_id": 0})()
        self.identity = resume.identify(trial, "model", data.sha256)
        lines = (folder / "lines.jsonl").open("ab", buffering=0)
        world = trainer_module.TrainContext(
            group=RankGroup(self.torch),
            report=lambda **line: lines.write(json.dumps(line).encode() + b"\n"),
            on_progress=lambda _phase, _step: None,
            stop_requested=(folder / "stop").exists,
            checkpoints=folder,
            identity=self.identity,
        )
        return trainer_module.Trainer(self.modules, trial, step, tokenizer, data, world)

    def overhead(self, checkpoint_sec: float) -> tuple[list[Figure], dict[str, Any]]:
        """Measure alternating blocks of bare and complete steps, then single checkpoints."""
        trial = self.trial(checkpoint_sec=checkpoint_sec)
        trainer = self.trainer(trial, self.here / "overhead")
        trainer.rehearse()
        trainer.restore(None)
        rates: dict[str, list[float]] = {"bare": [], "training": []}
        each = self.steps // BLOCKS
        with trainer_module.deterministic(self.torch, trainer.step.recipe):
            self._bare(trainer, each)  # warms up
            for block in range(BLOCKS):
                for kind in ("bare", "training") if block % 2 else ("training", "bare"):
                    rates[kind].append(self._bare(trainer, each) if kind == "bare" else self._training(trainer, each))
        ratios = [with_ / without for with_, without in zip(rates["training"], rates["bare"], strict=True)]
        stalls = []
        for _ in range(5):
            self._bare(trainer, 1)
            trainer.step.synchronize()
            start = time.perf_counter()
            assert trainer.checkpoint_manager.save(trainer.state, trainer.history)
            trainer.step.synchronize()  # the copy on the device counts as training time
            stalls.append(time.perf_counter() - start)
            trainer.checkpoint_manager.wait()
            written_sec = time.perf_counter() - start
        folder = checkpoint.checkpoint_folder(trainer.checkpoint_manager.folder, trainer.state.step)
        size = sum(path.stat().st_size for path in folder.iterdir())
        record = {"rates": rates, "ratios": ratios, "stalls": stalls, "bytes": size, "sec": written_sec}
        where = self.torch.cuda.get_device_name() if self.placement.is_cuda else "CPU"
        return [
            Figure(
                name=f"training with everything on, {trainer.step.recipe.split()[0]} on {where}",
                value=f"{statistics.median(rates['training']):,.0f} useful tokens/s",
                ratio=f"{spread(summarize(ratios), 'x of the bare step')}",
                goal=">= 0.98x",
            ),
            Figure(
                name=f"checkpoint of {size / 1e6:.0f} MB: stall",
                value=f"{spread(summarize(stalls), 's')}; on the disk after {written_sec:.2f} s",
                goal="<= 0.05 s",
            ),
        ], record

    def _bare(self, trainer: trainer_module.Trainer, steps: int) -> float:
        """Measure useful tokens per second of plain steps over the same rows."""
        step, torch = trainer.step, self.torch
        batches = trainer.training_set.batches(trainer.state.step)
        rows = [
            trainer.collate([trainer.training_set.data.training[index] for index in next(batches)[0]])
            for _ in range(steps)
        ]
        trained = [parameter for parameter in step.model.parameters() if parameter.requires_grad]
        step.synchronize()
        start = time.perf_counter()
        for row in rows:
            step.clock.begin()
            loss = step.forward_backward(step.inputs(row), 1.0)
            torch.nn.utils.clip_grad_norm_(trained, CLIPPED_AT)
            step.optimizer.step()
            step.optimizer.zero_grad(set_to_none=False)
            float(loss)
        step.synchronize()
        return sum(row.useful_tokens for row in rows) / (time.perf_counter() - start)

    def _training(self, trainer: trainer_module.Trainer, steps: int) -> float:
        """Measure useful tokens per second of the training over `steps` more steps."""
        done = trainer.state.step
        trainer.steps = done + steps
        real = trainer.training_set
        trainer.training_set = dataclasses.replace(
            real, training=dataclasses.replace(real.training, max_steps=done + steps)
        )
        compare, checkpoint = trainer._compare_ranks, trainer._checkpoint
        trainer._compare_ranks = lambda: None  # type: ignore[method-assign]
        trainer._checkpoint = lambda *, wait=False: True if wait else checkpoint()  # type: ignore[method-assign]
        upcoming = trainer._upcoming()  # an epoch's order is computed once a training, not once a block
        first = next(upcoming)
        trainer._upcoming = lambda: itertools.chain([first], upcoming)  # type: ignore[method-assign]
        trainer.step.synchronize()
        start = time.perf_counter()
        trainer.run()
        trainer.step.synchronize()
        seconds = time.perf_counter() - start
        trainer._compare_ranks, trainer._checkpoint, trainer.training_set = compare, checkpoint, real  # type: ignore[method-assign]
        del trainer._upcoming
        tokens = trainer.history.columns["tokens"][-steps:]
        return sum(tokens) / seconds

    def promise(self) -> tuple[list[Figure], dict[str, Any]]:
        """Check that a stopped and resumed training equals an undisturbed one; measure the time to resume."""
        steps = 8
        digests, resumed_sec = [], 0.0
        for name, stops in (("quiet", ()), ("again", ()), ("stopped", (3, 6))):
            folder = self.here / name
            for until in (*stops, steps):
                trial = self.trial(max_steps=steps, checkpoint_sec=900.0, schedule="cosine")
                trainer = self.trainer(trial, folder)
                (folder / "stop").unlink(missing_ok=True)
                start = time.perf_counter()
                with trainer_module.deterministic(self.torch, trainer.step.recipe):
                    trainer.rehearse()
                    trainer.restore(resume.find_checkpoint(folder, self.identity, lambda _: None))
                    began = self._until(trainer, folder, until, steps)
                if stops:
                    resumed_sec = began - start
            digests.append(hashlib.sha256(trainer.weights.to_flat().numpy().tobytes()).hexdigest())
            del trainer
        same = {"again": digests[0] == digests[1], "stopped": digests[0] == digests[2]}
        return [
            Figure(
                name="the same training twice, and stopped twice on the way",
                value=", ".join(f"{name}: {'equal' if equal else 'NOT EQUAL'}" for name, equal in same.items()),
                goal="equal, bit by bit",
            ),
            Figure(name="from a loaded model to the first step", value=f"{resumed_sec:.2f} s", goal="<= 5 s"),
        ], {"digests": digests, "resumed_sec": resumed_sec}

    def _until(self, trainer: trainer_module.Trainer, folder: Path, until: int, steps: int) -> float:
        """Train up to a step; return the time of the first one's end."""
        real, moments = trainer._log_step, list[float]()

        def note(number: int, *values: Any) -> None:
            moments.append(time.perf_counter())
            if number == until - 1 and until < steps:
                (folder / "stop").touch()
            real(number, *values)

        trainer._log_step = note  # type: ignore[assignment, method-assign]
        trainer.run()
        return moments[0]


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
