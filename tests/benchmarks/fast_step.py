"""The recipes on one GPU in one process: step times, useful tokens, peak memory, and ratios.

    python -m tests.benchmarks.fast_step --model DIR [--cases dense,packed,...] [--json FILE]

DIR is a model folder; speed depends only on shapes, so one made by `python -m tests.model_shapes DIR` will do. Every
case is loaded, warmed up for 5 steps and measured for 12 or more; the reference of a group is measured before and after
the others, which reveals a changing machine. Cases of the fast recipe run under a limit of
21.5 GiB, the memory that a 24 GB card leaves for training; held ones hold as many layers as fit this model. The group
`family` is for models of other families.

Tokens are drawn at random. Lengths of the ragged cases are log-normal, cut at 512, 194 on average over the measured
steps (`--mean-tokens`): instruction data's shape. Without a GPU the same cases run on the demo's small model at an
eighth of the length: a rehearsal whose ratios mean nothing.
"""

import argparse
import dataclasses
import gc
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench import torch_stack
from bench.architectures import find
from bench.data.collate import make_batches
from bench.data.model_folder import read_config
from bench.data.packing import Row, pack_whole_samples
from bench.predict import flops, memory
from bench.qlora import recipes
from bench.qlora.recipes.cuda_graph import CHECKPOINT_COPIES, HEADROOM_BYTES
from bench.qlora.step import Placement, choose_placement
from bench.records import Trial
from bench.records.bootstrap import summarize
from bench.records.validation import ALL_LINEAR
from tests.benchmarks import Figure, a_trial, demo_inputs, print_figures, spread
from tests.benchmarks._gpu import LIMIT_BYTES, MEASURED, WARMUP, limit_memory

SPREAD, SHORTEST = 0.75, 16
RESERVED_BYTES = int(0.7 * 2**30)  # the allocator reserved 21.31 GiB for 20.4, without the headroom


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration. `against` names the case of its ratio; `goal` is the promised value.

    With `held`, as many layers are held as fit the limit.
    """

    name: str
    group: str
    recipe: str = "reference"
    against: str = ""
    goal: str = "-"
    max_seq_len: int = 512
    micro_batch_size: int = 8
    ragged: bool = False
    limited: bool = False
    held: bool = False
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)


def cases() -> tuple[Case, ...]:
    plain = {"gradient_checkpointing": False, "optimizer": "adamw_torch"}
    again = {"gradient_checkpointing": True, "optimizer": "adamw_torch"}
    lean = {**again, "offload_checkpoints": True}
    wide = {"lora_targets": ALL_LINEAR}
    varlen = {"layout": "varlen"}
    to_family = {"against": "family reference"}
    of_1024: dict[str, Any] = {"max_seq_len": 1024, "micro_batch_size": 4}
    to_dense, to_long = {"against": "dense reference"}, {"against": "long reference", **of_1024}
    to_wide, to_padded = {"against": "all-linear reference"}, {"against": "ragged reference padded", "ragged": True}
    return (
        Case(name="dense reference", group="dense"),
        _fast("dense", "dense fast", plain, **to_dense),
        _fast("dense", "dense fast held", plain, held=True, goal=">= 2.6x", **to_dense),
        _fast("dense", "dense fast lean", lean, goal=">= 1.6x at <= 0.6x memory", **to_dense),
        _in_eight("dense", plain, goal=">= 4.0x", **to_dense),
        _fast("dense", "dense int8 lean", {**lean, "matmul": "int8"}, goal=">= 2.4x at <= 0.5x memory", **to_dense),
        Case(name="dense reference again", group="dense", **to_dense),
        Case(name="long reference", group="long", **of_1024),
        _fast("long", "long fast", plain, held=True, goal=">= 2.6x", **to_long),
        _in_eight("long", plain, goal=">= 3.9x", **to_long),
        Case(name="all-linear reference", group="wide", changes=wide),
        _fast("wide", "all-linear fast", {**plain, **wide}, held=True, goal=">= 3.0x", **to_wide),
        _in_eight("wide", {**plain, **wide}, goal=">= 5x", **to_wide),
        Case(name="ragged reference padded", group="packed", ragged=True),
        Case(name="ragged reference packed", group="packed", changes=varlen, **to_padded),
        _fast("packed", "ragged fast packed", {**plain, **varlen}, held=True, goal=">= 7.5x", **to_padded),
        _in_eight("packed", {**plain, **varlen}, goal=">= 11x", **to_padded),
        Case(name="family reference", group="family"),
        _fast("family", "family fast", plain, **to_family),
        _fast("family", "family fast held", plain, held=True, **to_family),
        _in_eight("family", plain, **to_family),
        Case(name="family reference again", group="family", **to_family),
        # Last, because Liger patches transformers for the whole process.
        Case(name="dense stock", group="stock", recipe="stock", changes=plain, **to_dense),
        Case(name="dense stock lean", group="stock", recipe="stock", changes=again, **to_dense),
        Case(name="family stock", group="family", recipe="stock", changes=plain, **to_family),
    )


def _fast(group: str, name: str, changes: dict[str, Any], **more: Any) -> Case:
    return Case(name=name, group=group, recipe="fast", limited=True, changes=changes, **more)


def _in_eight(group: str, changes: dict[str, Any], **more: Any) -> Case:
    """Make the held case of recipe fast with products in 8 bits."""
    return _fast(group, f"{group} int8", {**changes, "matmul": "int8"}, held=True, **more)


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.fast_step")
    parser.add_argument("--model", help="default: the demo's small model, made for this")
    parser.add_argument("--cases", default="dense,long,wide,packed,stock", help="groups of cases, or names")
    parser.add_argument("--json", type=Path, help="every step time and peak, for a record")
    parser.add_argument("--steps", type=int, default=MEASURED)
    parser.add_argument("--mean-tokens", type=float, default=194.0, help="mean length of the ragged cases' samples")
    arguments = parser.parse_args(argv)
    wanted = arguments.cases.split(",")
    known = [*dict.fromkeys(case.group for case in cases()), *(case.name for case in cases())]
    if unknown := [name for name in wanted if name not in known]:
        print(f"case {unknown[0]!r} is unknown; there are {', '.join(known)}", file=sys.stderr)
        raise SystemExit(2)
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or demo_inputs(Path(folder))[0]
        results, bench = {}, Bench.opened(model, arguments.steps, arguments.mean_tokens)
        for case in cases():
            if case.group in wanted or case.name in wanted:
                results[case.name] = bench.measure(case)
                told = {name: value for name, value in results[case.name].items() if name not in ("times", "trial")}
                print(f"{case.name}: {json.dumps(told)}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    return [_figure(case, results) for case in cases() if case.name in results]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One GPU, one model folder."""

    modules: torch_stack.Stack
    placement: Placement
    model: str
    steps: int
    mean: float

    @classmethod
    def opened(cls, model: str, steps: int, mean: float) -> "Bench":
        modules = torch_stack.load()
        return cls(modules=modules, placement=choose_placement(modules), model=model, steps=steps, mean=mean)

    def measure(self, case: Case) -> dict[str, Any]:
        """Step times in seconds, tokens, peak bytes; an out of memory is an answer too."""
        trial = self._trial(case)
        limit_memory(self.modules.torch, limited=case.limited)
        try:
            return self._train(trial, case)
        except self.modules.torch.OutOfMemoryError as error:
            return {"times": [], "out_of_memory": str(error)[:500]}
        finally:
            gc.collect()
            if self.placement.is_cuda:
                self.modules.torch._dynamo.reset()
                self.modules.torch.cuda.empty_cache()

    def _train(self, trial: Trial, case: Case) -> dict[str, Any]:
        torch, is_cuda = self.modules.torch, self.placement.is_cuda
        step = recipes.load(self.modules, trial, self.placement)
        tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=0)
        batches = make_batches(self.modules, trial, self._rows(trial, case), tokenizer, pin_memory=is_cuda)
        times, useful, total = [], 0, 0.0
        for number, batch in enumerate(islice(batches, WARMUP + self.steps)):
            seconds, total, _ = step.run_timed(iter([batch]), 1)
            if is_cuda and number == 0:
                torch.cuda.reset_peak_memory_stats()  # loading's own peak is not the training's
            if number >= WARMUP:
                times.append(seconds)
                useful += batch.useful_tokens
        return {
            "times": times,
            "peak_bytes": torch.cuda.max_memory_allocated() if is_cuda else None,
            "predicted_bytes": memory.peak_bytes(self._config(), trial),
            "useful_tokens_per_step": useful / len(times),
            "loss": float(total),
            "note": f"{step.recipe}; {', '.join(step.notes)}; captured: {step.capture_status}",
            "trial": trial.to_json(),
        }

    def _trial(self, case: Case) -> Trial:
        scale = 1 if self.placement.is_cuda else 8
        trial = a_trial(
            case.name,
            self.model,
            is_cuda=self.placement.is_cuda,
            recipe=case.recipe,
            max_seq_len=case.max_seq_len // scale,
            micro_batch_size=case.micro_batch_size,
            warmup_steps=WARMUP,
            measured_steps=self.steps,
            **case.changes,
        )
        return hold_most_layers(self._config(), trial) if case.held else trial

    def _config(self) -> dict[str, Any]:
        return read_config(Path(self.model))

    def _rows(self, trial: Trial, case: Case) -> list[Row]:
        chooser = random.Random(7)
        config = self._config()

        def tokens(length: int) -> list[int]:
            return chooser.choices(range(1, config["vocab_size"]), k=length)

        count = trial.micro_batch_size * (WARMUP + self.steps)
        if not case.ragged:
            return [Row(ids=tokens(trial.max_seq_len)) for _ in range(count)]
        # Every case has the same lengths, those of warm-up and measured steps of one mean each; packed rows go
        # through them several times.
        warming, mean = trial.micro_batch_size * WARMUP, self.mean * trial.max_seq_len / 512
        drawn = [each for part in (warming, count - warming) for each in lengths(part, trial.max_seq_len, mean)]
        samples = [tokens(length) for length in 6 * drawn]
        if trial.layout == "varlen":
            return pack_whole_samples(
                samples, trial.max_seq_len, trial.micro_batch_size * trial.max_seq_len, WARMUP + self.steps
            )
        return [Row(ids=sample) for sample in samples[:count]]


def hold_most_layers(config: Mapping[str, Any], trial: Trial) -> Trial:
    """Return the trial with as many held layers as leave room to capture its step within the limit."""
    trained = CHECKPOINT_COPIES * 4 * flops.adapter_weights(config, trial.lora_rank, trial.lora_targets)
    room = LIMIT_BYTES - RESERVED_BYTES - HEADROOM_BYTES - trained
    layers = find(config).geometry(config).layers
    trials = [dataclasses.replace(trial, held_layers=held) for held in range(layers + 1)]
    return next((each for each in reversed(trials) if memory.peak_bytes(config, each) <= room), trial)


def lengths(count: int, longest: int, mean: float) -> list[int]:
    """Draw truncated log-normal sample lengths with this mean."""
    chooser = random.Random(11)
    drawn, scale, shortest = [chooser.lognormvariate(0.0, SPREAD) for _ in range(count)], 1.0, min(SHORTEST, longest)
    for _ in range(20):  # truncation changes the mean; a few rounds converge
        cut = [max(shortest, min(longest, round(scale * length))) for length in drawn]
        scale *= mean * count / sum(cut)
    return cut


def _figure(case: Case, results: dict[str, Any]) -> Figure:
    result = results[case.name]
    if not result["times"]:
        return Figure(name=case.name, value="out of memory", goal=case.goal)
    interval = summarize(result["times"])
    rate = result["useful_tokens_per_step"] / interval.median
    value = f"{spread(interval, 's')}, {rate:,.0f} useful tokens/s"
    if result["peak_bytes"] is not None:
        value += f", peak {result['peak_bytes'] / 2**30:.2f} GiB"
    other = results.get(case.against)
    ratio = "-"
    if other and other["times"]:
        ratio = f"{rate / (other['useful_tokens_per_step'] / summarize(other['times']).median):.2f}x"
        if result["peak_bytes"] and other["peak_bytes"]:
            ratio += f", memory {result['peak_bytes'] / other['peak_bytes']:.2f}x"
    return Figure(name=case.name, value=value, ratio=ratio, goal=case.goal)


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
