"""The training trial: QLoRA steps after a warm-up, each timed as a whole and by phase.

MFU is the share of the device's matrix-product rate that the training reached. The product is measured on the same
device right after the last step, at the training's clocks and temperature.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from bench import torch_stack
from bench.data.collate import Batch, make_batches, make_rows
from bench.data.inputs import Inputs
from bench.data.tokenizer import load_trial_tokenizer
from bench.data.trial_inputs import as_stock
from bench.harness.record import PHASES, Record
from bench.harness.termination import NonFiniteLoss, StopSignals, is_out_of_memory
from bench.machine import gpu_specs
from bench.predict import flops, memory
from bench.qlora import recipes
from bench.qlora.step import Placement, TorchSession, TrainingStep, open_session, sized_config
from bench.records.bootstrap import summarize
from bench.records.result import Steps
from bench.workloads import hardware

FORMULA = "4 (blocks + head) + 6 adapters + 3 attention: bench/predict/flops.py; recomputation not counted"
# Size and seconds of the product for MFU, on a GPU and on the CPU. One pair of operands is enough: on a GPU each is
# larger than any cache.
GPU_CEILING, CPU_CEILING = (8192, 0.2), (512, 0.1)


def measure(record: Record, inputs: Inputs, stops: StopSignals) -> None:
    """Load, train, and add every step to the record.

    Raises NonFiniteLoss, and the stack's own exceptions.
    """
    trial, log = record.trial, record.log
    _, data_facts, conversations = inputs
    session = open_session(record, stops)
    modules, placement = session.modules, session.placement
    config, phases = sized_config(trial), list[dict[str, float]]()
    try:
        with record.timed("data"):
            tokenizer = load_trial_tokenizer(trial)
            if tokenizer.pad_token_id is None:
                log("the tokenizer has no padding token: padding with its end token, without loss or attention there")
            rows = make_rows(trial, conversations, tokenizer)
        skipped = f", {data_facts.skipped} chats without an answer skipped" if data_facts.skipped else ""
        log(f"data of {data_facts.samples:,} samples{skipped}; {len(rows):,} rows tokenized, layout {trial.layout}")
        with record.timed("load"):
            step = _load(record, modules, placement, stops)
        batches = make_batches(modules, trial, rows, tokenizer, pin_memory=placement.is_cuda)
        with contextlib.closing(batches):
            with record.timed("warmup"):
                for _ in range(trial.warmup_steps):
                    _run_step(record, step, batches, record.warmup, stops)
            with record.timed("measure"):
                for _ in range(trial.measured_steps):
                    _run_step(record, step, batches, record.steps, stops)
                    phases.append(step.clock.read())
            record.fingerprint["step_captured"] = step.capture_status
    finally:
        _add_phases(record, phases)
        if placement.is_cuda:
            record.peak_vram_bytes = modules.torch.cuda.max_memory_allocated()
            _add_prediction(record, config)
    with record.timed("ceilings"):
        _add_ceilings(record, session, config)


def _add_prediction(record: Record, config: Mapping[str, Any]) -> None:
    """Add the predicted peak memory of this trial, with the recipe and matmul that were built after fallbacks."""
    trial = record.trial
    built = str(record.fingerprint.get("recipe") or trial.recipe).split()[0]
    if built != trial.recipe:
        trial = as_stock(trial)
    elif str(record.fingerprint.get("recipe_notes")).startswith("matmul bf16"):
        trial = dataclasses.replace(trial, matmul="bf16")
    captured = record.fingerprint.get("step_captured") == "yes"
    peak = memory.peak_bytes(config, trial, captured=captured)
    record.add("predicted_peak_vram_bytes", peak, recipe=built)


def _load(record: Record, modules: torch_stack.Stack, placement: Placement, stops: StopSignals) -> TrainingStep:
    step = recipes.load(modules, record.trial, placement)
    stops.check()
    record.load_time_sec = step.load_sec
    record.fingerprint.update(step.facts())
    record.flags += step.flags
    record.log(
        f"loaded {record.fingerprint['model_parameters']:,} parameters as {record.trial.base_precision} in "
        f"{step.load_sec:.2f} s; recipe {step.recipe}; training {step.trained_parameters:,} with {step.optimizer_name}"
    )
    return step


def _add_phases(record: Record, phases: list[dict[str, float]]) -> None:
    """Add one measurement per phase over the steps measured so far; nothing if there are no steps."""
    clock = "device" if record.fingerprint.get("device") == "cuda" else "host"
    for phase in PHASES if phases else ():
        record.add(f"step_{phase}_sec", summarize([step[phase] for step in phases]), clock=clock)


def _run_step(record: Record, step: TrainingStep, batches: Iterator[Batch], steps: Steps, stops: StopSignals) -> None:
    seconds, total, used = step.run_timed(batches, record.trial.gradient_accumulation_steps)
    # Everything below is outside the timed region.
    stops.check()
    loss = float(total)
    record.add_step(
        steps,
        seconds=seconds,
        loss=loss,
        samples=sum(batch.samples for batch in used),
        tokens=sum(batch.tokens for batch in used),
        useful=sum(batch.useful_tokens for batch in used),
    )
    if not math.isfinite(loss):
        number = len(steps.step_time_sec)
        raise NonFiniteLoss(f"the loss is {loss} at {record.phase} step {number}")


def _add_ceilings(record: Record, session: TorchSession, config: Mapping[str, Any]) -> None:
    """Add matmul_tflops and mfu_percent for the record's steps, without values if no product can be measured."""
    dtype = "bf16" if session.placement.compute_dtype == session.modules.torch.bfloat16 else "fp32"
    size, budget_sec = GPU_CEILING if session.placement.is_cuda else CPU_CEILING
    try:
        if session.placement.is_cuda:
            session.modules.torch.cuda.empty_cache()  # the training's cached blocks may fill the memory
        ceiling = hardware.matmul_tflops(session, dtype, size, budget_sec=budget_sec, operand_bytes=0)
    except Exception as error:
        if not isinstance(error, hardware.Unsupported) and not is_out_of_memory(error):
            raise
        note = str(error) if isinstance(error, hardware.Unsupported) else "not enough memory left next to the training"
        record.add("matmul_tflops", None, note=note, dtype=dtype, size=size)
        record.add("mfu_percent", None, note="no measured matrix product to compare with", formula=FORMULA)
        return
    chip = gpu_specs.lookup(record.fingerprint["gpu_name"])
    share = gpu_specs.share_percent(ceiling.median, None if chip is None else chip.matmul_tflops(dtype))
    record.add("matmul_tflops", ceiling, share_percent=share, dtype=dtype, size=size)
    trial, steps = record.trial, record.steps
    cost = flops.trial_flops(config, trial)
    rates = [tokens / seconds for tokens, seconds in zip(steps.tokens, steps.step_time_sec, strict=True)]
    mfu = summarize([flops.mfu_percent(cost.model, rate, ceiling.median) for rate in rates])
    record.add(
        "mfu_percent",
        mfu,
        flop_per_token=cost.model,
        matmul_dtype=dtype,
        formula=FORMULA,
    )
