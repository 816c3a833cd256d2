"""The quality trial: a short training on the user's data, then the loss of examples that it has not seen.

Two trials of one seed differ only in their configuration: they start from the same adapters, take the same rows in the
same order, and are evaluated on the same held-out examples. Each seed has its own part of the held-out examples, so
differences of several seeds vary with all that is random: adapters, order, dropout and examples.

Not covered: checkpoints. An interrupted trial starts again.
"""

import dataclasses
import importlib
import os
from typing import Any

from bench.data.inputs import InputError, Inputs
from bench.data.tokenizer import load_trial_tokenizer
from bench.harness.record import Record
from bench.harness.termination import StopSignals
from bench.qlora import recipes
from bench.qlora.step import TorchSession, open_session
from bench.records import Trial
from bench.workloads.finetune import resume, training_set
from bench.workloads.finetune.training_set import TrainingSet, check_inputs
from bench.workloads.ranks.process import RankGroup

__all__ = ["check_inputs", "measure"]
EXAMPLES_FOLDER = "examples"
MAX_HELD_OUT = 256  # examples of a seed: more take longer than the steps


def measure(record: Record, inputs: Inputs, stops: StopSignals) -> None:
    """Train, and add the held-out loss before and after. Raises the errors of a training, and InputError."""
    trial = record.trial
    if trial.recipe != "fast":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as in a fine-tuning: sums in one order
    session = open_session(record, stops)
    with record.timed("data"):
        tokenizer = load_trial_tokenizer(trial)
        folder = record.request.checkpoints
        cache = None if folder is None else folder / EXAMPLES_FOLDER
        data = held_out_part(trial, training_set.load(trial, cache))
    record.log(
        f"{data.steps()} steps over {len(data.data.training):,} examples; {len(data.data.validation):,} held out for "
        f"seed {trial.seed}"
    )
    stops.check()
    with record.timed("load"):
        trainer = _make_trainer(record, session, tokenizer, data, inputs, stops)
    record.steps_planned = trainer.steps
    module = importlib.import_module("bench.workloads.finetune.trainer")
    with module.deterministic(session.modules.torch, trainer.step.recipe), record.timed("measure"):
        trainer.rehearse()
        trainer.run()
        stops.check()
    if session.placement.is_cuda:
        record.peak_vram_bytes = session.modules.torch.cuda.max_memory_allocated()
    before, after = trainer.state.evaluations[0], trainer.state.evaluations[-1]
    facts = {"examples": after.rows, "targets": after.targets, "steps": trainer.state.step}
    record.add("untrained_loss_nats", before.loss, **{**facts, "steps": 0})
    record.add("held_out_loss_nats", after.loss, **facts)


def held_out_part(trial: Trial, data: TrainingSet) -> TrainingSet:
    """Return the training set with the seed's part of the held-out examples. Raises InputError if none is held out.

    Seeds share examples if there are fewer examples than seeds.
    """
    count = len(data.data.validation)
    if not count:
        raise InputError(f"{trial.data}: no example is held out", remedy="raise train.validation_fraction")
    parts = min(trial.held_out_parts, count)
    numbers = range(trial.seed % parts, count, parts)[:MAX_HELD_OUT]
    examples = dataclasses.replace(data.data, validation=data.data.validation.select(numbers))
    return dataclasses.replace(data, data=examples)


def _make_trainer(
    record: Record, session: TorchSession, tokenizer: Any, data: TrainingSet, inputs: Inputs, stops: StopSignals
) -> Any:
    trial, modules = record.trial, session.modules
    step = recipes.load(modules, trial, session.placement)
    record.fingerprint |= step.facts()
    record.flags += step.flags
    record.log(f"recipe {step.recipe} with {step.optimizer_name}")

    def on_progress(phase: str, number: int) -> None:
        stops.check()
        record.phase = phase
        record.earlier_steps = number if phase == "train" else record.earlier_steps
        record.publish_progress()

    # This import loads torch, which must happen after the stack's settings.
    module = importlib.import_module("bench.workloads.finetune.trainer")
    context = module.TrainContext(
        group=RankGroup(modules.torch),
        report=lambda **line: record.apply_report(line),
        on_progress=on_progress,
        identity=resume.identify(trial, inputs[0].sha256, data.sha256),
    )
    return module.Trainer(modules, trial, step, tokenizer, data, context)
