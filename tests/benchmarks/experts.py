"""A step of Qwen3-30B-A3B's shape with its experts in NF4, at half its layers, and of transformers' own experts.

    python -m tests.benchmarks.experts [--layers 24] [--loop-layers 4] [--steps 10]

Random weights are made on the GPU, layer by layer: 61 GB of files do not fit everywhere, and speed depends on shapes.
Steps are 512 x 8 by recipe `fast`, with adapters on attention and every layer recomputed. Each case is also measured at
half its layers: the difference is the time of a layer, from which the step at all 48 layers is extrapolated. The others
are recipe `stock`: with the same experts, and with experts in 16 bits, by transformers' loop or its grouped products.
Without a GPU everything is tiny: a rehearsal whose ratios mean nothing.
"""

import argparse
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

from bench import torch_stack
from bench.data.collate import Batch
from bench.qlora import experts
from bench.qlora.recipes import fast, stock
from bench.qlora.step import Placement, TrainingStep, choose_placement
from bench.records.bootstrap import Interval, summarize
from tests.benchmarks import Figure, a_trial, print_figures, spread

LAYERS, SEQUENCE, ROWS, WARMUP, LOOP_STEPS = 48, 512, 8, 5, 5
SIZES = {
    "hidden_size": 2048, "moe_intermediate_size": 768, "intermediate_size": 6144, "num_experts": 128,
    "num_experts_per_tok": 8, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "norm_topk_prob": True, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "use_cache": False,
}  # fmt: skip
TINY = {"hidden_size": 64, "moe_intermediate_size": 64, "intermediate_size": 128, "head_dim": 16, "vocab_size": 264}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]


class Bench:
    """Models of the shape, and the time of their steps."""

    def __init__(self, steps: int) -> None:
        self.steps, self.modules = steps, torch_stack.load()
        self.torch = self.modules.torch
        self.placement: Placement = choose_placement(self.modules)

    @property
    def is_cuda(self) -> bool:
        return self.placement.is_cuda

    def make(self, layers: int, recipe: str = "stock", implementation: str | None = None) -> TrainingStep:
        """Build a recipe's step over a model of random weights, in NF4 without a named `implementation`."""
        sizes = SIZES if self.is_cuda else SIZES | TINY
        config = self.modules.transformers.Qwen3MoeConfig(num_hidden_layers=layers, **sizes)
        options = {} if implementation is None else {"experts_implementation": implementation}
        auto = self.modules.transformers.AutoModelForCausalLM
        with self.torch.device("meta"):
            model = auto.from_config(config, dtype=self.placement.compute_dtype, **options)
        self.torch.manual_seed(1)
        for module in model.modules():
            self._fill(module, in_nf4=implementation is None)
        with self.torch.device(self.placement.device):
            model.model.rotary_emb = type(model.model.rotary_emb)(config)
        experts.install(model)
        model.is_loaded_in_4bit = True
        trial = a_trial(
            "experts", "none", is_cuda=self.is_cuda, max_seq_len=SEQUENCE, micro_batch_size=ROWS, recipe=recipe,
            optimizer="adamw_torch", gradient_checkpointing=True,
        )  # fmt: skip
        builder = {"fast": fast, "stock": stock}[recipe]
        with mock.patch.object(builder, "add_lora", self._add_lora):
            step = builder.build(self.modules, trial, self.placement, model)
        if implementation is not None and self.is_cuda:  # not Liger's experts, and no compiler in a loop
            for module in (layer.mlp.experts for layer in model.model.layers):
                module.forward = self.torch.compiler.disable(partial(type(module).forward, module))
        return step

    def _fill(self, module: Any, *, in_nf4: bool) -> None:
        torch, nn = self.torch, self.modules.bitsandbytes.nn
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear and name != "lm_head":
                linear = nn.Linear4bit(
                    child.in_features, child.out_features, bias=False, quant_type="nf4", device="meta",
                    compute_dtype=self.placement.compute_dtype, compress_statistics=True,
                )  # fmt: skip
                linear.weight = experts.quantize(self.modules, self._random(child.weight))
                setattr(module, name, linear)
        for name, parameter in list(module._parameters.items()):
            if parameter is None or not parameter.is_meta:
                continue
            is_expert = experts.is_expert_weight(module, name)
            weight = self._random(parameter) if parameter.dim() > 1 else torch.ones_like(parameter, device=self.device)
            if is_expert and in_nf4:
                module._parameters[name] = experts.quantize(self.modules, weight)
            else:
                module._parameters[name] = torch.nn.Parameter(weight, requires_grad=False)

    @property
    def device(self) -> Any:
        return self.placement.device

    def _random(self, like: Any) -> Any:
        return self.torch.empty(like.shape, dtype=like.dtype, device=self.device).normal_(std=0.02)

    def _add_lora(self, _stack: Any, trial: Any, model: Any) -> Any:
        config = self.modules.peft.LoraConfig(
            r=trial.lora_rank, lora_alpha=trial.lora_alpha, target_modules=TARGETS, task_type="CAUSAL_LM"
        )
        return self.modules.peft.get_peft_model(model, config).train()

    def batches(self) -> Iterator[Batch]:
        generator = self.torch.Generator().manual_seed(2)
        rows, length = (ROWS, SEQUENCE) if self.is_cuda else (2, 32)
        while True:
            ids = self.torch.randint(4, 260, (rows, length), generator=generator)
            tokens = rows * length
            yield Batch(input_ids=ids, labels=ids, samples=rows, tokens=tokens, useful_tokens=tokens)

    def measure(self, step: TrainingStep) -> Interval:
        batches = self.batches()
        times = [step.run_timed(batches, 1)[0] for _ in range(WARMUP + self.steps)]
        return summarize(times[WARMUP:])

    def is_repeatable(self, step: TrainingStep) -> bool:
        """Return whether two passes over a batch give the same bits."""
        inputs, gradients = step.inputs(next(self.batches())), []
        for _ in range(2):
            step.forward_backward(inputs, 1.0)
            gradients.append(
                [parameter.grad.clone() for parameter in step.model.parameters() if parameter.requires_grad]
            )
            step.clear_gradients()
        return all(self.torch.equal(*pair) for pair in zip(*gradients, strict=True))

    def measure_layers(self, layers: int, *kind: str) -> tuple[Interval, float]:
        """Measure the step at so many layers and at half: (that of all, seconds of a layer)."""
        self.reset()
        whole = self.measure(self.make(layers, *kind))
        self.reset()
        return whole, (whole.median - self.measure(self.make(layers // 2, *kind)).median) / (layers - layers // 2)

    def reset(self) -> None:
        gc.collect()
        if self.is_cuda:
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.experts")
    parser.add_argument("--layers", type=int, default=LAYERS // 2)
    parser.add_argument("--loop-layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args(argv)
    log = partial(print, file=sys.stderr, flush=True)
    began = time.monotonic()
    bench = Bench(arguments.steps)
    step = bench.make(arguments.layers, "fast")
    held = bench.torch.cuda.memory_allocated() if bench.is_cuda else 0
    log(f"{time.monotonic() - began:.0f} s: made {arguments.layers} layers")
    bench.measure(step)
    peak = bench.torch.cuda.max_memory_allocated() if bench.is_cuda else 0
    is_repeatable, status = bench.is_repeatable(step), step.capture_status
    del step
    whole, ours = bench.measure_layers(arguments.layers, "fast")
    extrapolated = whole.median + (LAYERS - arguments.layers) * ours
    log(f"{time.monotonic() - began:.0f} s: fast")
    figures = [
        Figure(name=f"experts in NF4, {arguments.layers} layers", value=spread(whole, "s")),
        Figure(name="a layer", value=f"{1e3 * ours:.2f} ms"),
        Figure(name=f"extrapolated to {LAYERS} layers", value=f"{extrapolated:.3f} s", goal="<= 0.35 s"),
        Figure(name="the same bits twice; CUDA graph", value=f"{is_repeatable}; {status}", goal="True; yes"),
        Figure(name=f"peak at {arguments.layers} layers", value=f"{peak / 2**30:.2f} GiB, {held / 2**30:.2f} held"),
    ]
    bench.steps = LOOP_STEPS  # thousands of launches each
    for name, kind in (("stock", ()), ("loop in 16 bits", ("eager",)), ("grouped in 16 bits", ("grouped_mm",))):
        _, per_layer = bench.measure_layers(arguments.loop_layers, "stock", *kind)
        value, goal = f"{1e3 * per_layer:.2f} ms", ">= 3x" if "loop" in name else "-"
        figures.append(Figure(name=f"{name}, a layer", value=value, ratio=f"{per_layer / ours:.2f}x", goal=goal))
        log(f"{time.monotonic() - began:.0f} s: {name}")
    return figures


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
