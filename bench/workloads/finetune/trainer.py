"""The training loop: steps, evaluations and checkpoints, from the newest checkpoint to the end.

A step's results depend only on the weights, the optimizer's state, the step's number, the data and the settings, not on
when or how often the training was stopped. Therefore a training that was killed at any point ends with the same adapter
as an uninterrupted one, bit by bit, on the same kind of device and number of ranks.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from bench import torch_stack
from bench.harness.termination import NonFiniteLoss
from bench.qlora.step import TrainingStep
from bench.records import Trial, schema
from bench.records.score import TrainingScore
from bench.workloads.finetune import evaluate
from bench.workloads.finetune.answers import AnswerGenerator
from bench.workloads.finetune.checkpoint import State
from bench.workloads.finetune.checkpoint_manager import (
    CheckpointManager,
    Weights,
    load_checkpoint,
    load_init_adapter,
    write_adapter,
)
from bench.workloads.finetune.resume import ResumePoint, check_free_space
from bench.workloads.finetune.score import Scoring
from bench.workloads.finetune.scoring import StopRequested, TrainContext, TrainingScorer
from bench.workloads.finetune.steps import (
    GlobalStep,
    Gradients,
    StepRow,
    deterministic,
    learning_rate_factor,
    waited_percent,
)
from bench.workloads.finetune.training_set import RowCollator, TrainingSet, count_targets

__all__ = ["TrainContext", "Trainer", "deterministic", "write_adapter"]
ZERO_STEPS = 3
MAX_NAMED_ROWS = 5
T = TypeVar("T")


class NoTrainableTokens(ArithmeticError):
    """Error for steps that change no weights: the training would learn nothing and report success."""


class Trainer:
    """The training loop of this rank. `run` returns why it ended: finished, early, max_hours or stopped."""

    def __init__(
        self,
        modules: torch_stack.Stack,
        trial: Trial,
        step: TrainingStep,
        tokenizer: Any,
        training_set: TrainingSet,
        context: TrainContext,
    ) -> None:
        self.modules, self.torch, self.trial = modules, modules.torch, trial
        self.training = training = training_set.training
        self.step, self.tokenizer = step, tokenizer
        self.peft_model = getattr(step.model, "peft_model", step.model)
        self.training_set, self.context, self.group = training_set, context, context.group
        trained = [parameter for parameter in step.model.parameters() if parameter.requires_grad]
        self.gradients = Gradients(self.torch, trained, self.group, wire_dtype=training.gradients)
        step.has_gradient_hooks = not self.group.is_single
        self.collate = RowCollator(training_set, tokenizer, pin_memory=bool(trained[0].is_cuda))
        self.steps = training_set.steps()
        self.global_step = GlobalStep(
            self.torch, step, self.gradients, seed=trial.seed, max_norm=training.max_gradient_norm
        )
        self.weights = Weights(modules, step, self.peft_model)
        self.state = State(step=0, seconds=0.0)
        self.checkpoint_manager: CheckpointManager | None = None
        self._zero_gradient_steps, self._waits = 0, list[tuple[float, float]]()
        self.scorer: TrainingScorer | None = None
        if (scoring := Scoring.load(training)) is not None:
            check, ends = self._check_answering, training_set.end_tokens
            generator = AnswerGenerator.of_step(modules, step, self.peft_model, tokenizer, ends, on_step=check)
            self.scorer = TrainingScorer(
                scoring, training_set, tokenizer, context, self.weights.adapter, generator, check
            )
        if context.checkpoints is not None:

            def log(message: str) -> None:
                context.report(log=message, flag=message)

            self.checkpoint_manager = CheckpointManager(
                self.torch, context.checkpoints, context.identity, self.weights,
                keep_count=training.keep_checkpoints, log=log,
                on_wait=lambda: context.show_progress("checkpoint", self.state.step),
            )  # fmt: skip
            check_free_space(context.checkpoints, (training.keep_checkpoints + 3) * (self.weights.bytes() + (1 << 20)))

    # Before the first step --------------------------------------------------------------------------------------------

    def rehearse(self) -> None:
        """Run the heaviest row until it is captured, and exchange its gradients: memory runs out here or never."""
        examples = [self.training_set.data.training[index] for index in self.training_set.heaviest_row()]
        row = StepRow(index=0, batch=self.collate(examples), targets=count_targets(examples))
        for _ in range(1 + self.step.may_capture):
            self.step.clock.begin()
            self.step.forward_backward(self.step.inputs(row.batch), 1.0)
        if not self.group.is_single:  # the first exchange takes memory, too
            self.global_step.forward_backward(0, [row], row.targets)
        self.gradients.clear()
        self.step.synchronize()

    def restore(self, resume_point: ResumePoint | None) -> None:
        """Restore rank 0's checkpoint on every rank; None starts from the beginning, or from the planned adapter."""
        manager, is_begun = self.checkpoint_manager, False
        if resume_point is not None:
            best = load_checkpoint(resume_point.path, self.weights)
            self.state = resume_point.state
            if manager is not None:
                manager.newest_step, manager.best = self.state.step, best
                if best is None and self.state.best_step is not None:
                    manager.set_best()
        elif self.training.init_adapter is not None and self.group.rank == 0:
            load_init_adapter(self.training.init_adapter, self.training.init_sha256, self.weights)
            is_begun = True
        if not self.group.is_single:
            self.state, weights = self.group.broadcast_object((self.state, self.weights.to_host()))
            self.weights.load(*weights)
        if is_begun:
            self._checkpoint(wait=True)  # a later attempt may be on a machine without the adapter

    # The steps --------------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Train to the end, or until a stop request. Raises NonFiniteLoss, NoTrainableTokens and RanksDiffer."""
        training = self.training
        started, earlier_sec = self.context.started, self.state.seconds
        max_sec = math.inf if training.max_hours is None else training.max_hours * 3600.0
        last_checkpoint = time.monotonic()
        self._add_time("loading_sec", started)
        self._evaluate_if_due()  # before the first step, or after a stop between step and evaluation
        if self.state.step == 0 and self.scorer is not None:
            with contextlib.suppress(StopRequested):  # the next step ends the attempt
                self.state = dataclasses.replace(self.state, first_score=self._score(self.scorer.measure_base))
        upcoming = self._upcoming()
        ready = next(upcoming, None)
        while ready is not None and not self._is_early():
            number, (rows, targets, all_rows) = self.state.step + 1, ready
            is_over = earlier_sec + time.monotonic() - started > max_sec
            start = time.perf_counter()
            self.context.show_progress("train", number)
            factor = learning_rate_factor(training, number, self.steps)
            self.global_step.forward_backward(
                number, rows, targets, (float(self.context.stop_requested()), float(is_over))
            )
            self.global_step.update(factor)
            ready = next(upcoming, None)  # while the device computes
            loss, norm, (stop_requests, over) = self.global_step.read()
            self._check(number, loss, norm, rows)
            seconds = time.perf_counter() - start
            self._waits.append((self.gradients.waited_sec(), seconds))
            self._log_step(number, loss, norm, factor, targets, all_rows, seconds)
            total_sec = earlier_sec + time.monotonic() - started
            self.state = dataclasses.replace(self.state, step=number, seconds=total_sec)
            if stop_requests or over:
                self._checkpoint(wait=True)
                return "stopped" if stop_requests else "max_hours"
            self._evaluate_if_due()
            if time.monotonic() - last_checkpoint >= training.checkpoint_sec and self._checkpoint():
                last_checkpoint = time.monotonic()
        self._checkpoint(wait=True)
        self.group.check_equal(self.weights.digest(), "the adapter")
        return "early" if self._is_early() and self.state.step < self.steps else "finished"

    def _upcoming(self) -> Iterator[tuple[list[StepRow], int, list[list[Any]]]]:
        """Yield for each step this rank's rows, the global batch's targets, and the examples of all its rows."""
        data = self.training_set.data.training
        for batch in self.training_set.batches(self.state.step):
            all_rows = [[data[index] for index in indices] for indices in batch]
            targets = [count_targets(examples) for examples in all_rows]
            local_rows = [
                StepRow(index=index, batch=self.collate(all_rows[index]), targets=targets[index])
                for index in range(self.group.rank, len(batch), self.group.world_size)
            ]
            yield local_rows, sum(targets), all_rows

    def _check(self, number: int, loss: float, norm: float, rows: Sequence[StepRow]) -> None:
        if not math.isfinite(loss) or not math.isfinite(norm):
            local_indices = [
                row.index
                for row, mean in zip(rows, self.global_step.losses, strict=True)
                if not math.isfinite(float(mean))
            ]
            indices = sorted(index for part in self.group.gather_objects(local_indices) for index in part)
            problem = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
            raise NonFiniteLoss(f"{problem} at step {number} ({self._source_lines(number, indices)})")
        self._zero_gradient_steps = self._zero_gradient_steps + 1 if norm == 0.0 else 0
        if loss == 0.0 or self._zero_gradient_steps >= ZERO_STEPS:
            problem = "the loss is 0" if loss == 0.0 else f"the gradient's norm was 0 for {ZERO_STEPS} steps"
            raise NoTrainableTokens(
                f"{problem} at step {number} ({self._source_lines(number, [])}): nothing is being learned"
            )

    def _source_lines(self, number: int, row_indices: Sequence[int]) -> str:
        """Name the data files' lines of these rows of a step, or of all its rows if `row_indices` is empty."""
        batch = next(self.training_set.batches(number - 1))
        chosen = [batch[index] for index in row_indices] or batch
        data = self.training_set.data.training
        names = dict.fromkeys(data[index].location for row in chosen for index in row)
        first_names = list(names)[:MAX_NAMED_ROWS]
        more = f" and {len(names) - len(first_names)} more" if len(names) > len(first_names) else ""
        rows = f"rows {', '.join(map(str, row_indices))}" if row_indices else "all its rows"
        return f"{rows}: {', '.join(first_names)}{more}"

    def _log_step(
        self, number: int, loss: float, norm: float, factor: float, targets: int, rows: list[list[Any]], seconds: float
    ) -> None:
        if self.checkpoint_manager is None:
            return
        examples = [example for row in rows for example in row]
        values = {
            "step": number,
            "loss": loss,
            "learning_rate": self.trial.learning_rate * factor,
            "gradient_norm": norm,
            "targets": targets,
            "tokens": sum(len(example.ids) for example in examples),
            "samples": len(examples),
            "step_time_sec": seconds,
        }
        self.state.steps.add(values)
        positions = self.training_set.positions(rows)
        self.context.report(
            step={**values, "positions": positions}, checkpoint_step=self.checkpoint_manager.written_step
        )

    def _checkpoint(self, *, wait: bool = False) -> bool:
        manager = self.checkpoint_manager
        if manager is None:
            return True
        if wait:
            manager.wait()
        if manager.newest_step == self.state.step:
            return wait
        start = time.monotonic()
        is_saved = manager.save(self.state, wait=wait)
        self._add_time("checkpoint_sec", start)
        return is_saved

    # Evaluation -------------------------------------------------------------------------------------------------------

    def _evaluate_if_due(self) -> None:
        """Evaluate the held-out loss after the state's step, on all ranks, if that is due and was not done yet."""
        start, number, every = time.monotonic(), self.state.step, self.training.evaluate_every
        held_out, is_end = self.training_set.data.validation, number in (0, self.steps)
        is_done = any(evaluation.step == number for evaluation in self.state.evaluations)
        if not held_out or is_done or not (is_end or (every and number % every == 0)):
            return
        on_progress = partial(self.context.show_progress, "evaluate")
        losses = evaluate.example_losses(
            self.torch, self.step, self.training_set, self.collate, self.group, on_progress
        )
        first = self.state.first_losses
        result = evaluate.make_evaluation(number, losses, first, [count_targets([example]) for example in held_out])
        if not math.isfinite(result.loss):
            raise NonFiniteLoss(f"the held-out loss is {result.loss} after step {number}")
        self._add_time("evaluation_sec", start)
        best = min((evaluation.loss for evaluation in self.state.evaluations if evaluation.is_best), default=math.inf)
        is_best = number > 0 and result.loss < best
        result = dataclasses.replace(result, is_best=is_best)
        self.state = dataclasses.replace(
            self.state,
            evaluations=[*self.state.evaluations, result],
            first_losses=first or losses,
            best_step=number if is_best else self.state.best_step,
        )
        self.context.report(evaluation=schema.to_json(result))
        if is_best and self.checkpoint_manager is not None:
            self.checkpoint_manager.set_best()
            self._checkpoint(wait=False)

    def _is_early(self) -> bool:
        """Return True if early stopping applies: no evaluation was the best for `patience` evaluations."""
        later = [evaluation for evaluation in self.state.evaluations if evaluation.step > 0]
        since = next((n for n, evaluation in enumerate(reversed(later)) if evaluation.is_best), len(later))
        return 0 < self.training.patience <= since

    def score(self) -> TrainingScore | None:
        """Compare the scores of the base and of the present weights, on all ranks. Raises StopRequested."""
        scorer = self.scorer
        return None if scorer is None else self._score(lambda: scorer.compare(self.state.first_score))

    def _score(self, measure: Callable[[], T]) -> T:
        start = time.monotonic()
        try:
            return measure()
        finally:
            self._add_time("score_sec", start)

    def _check_answering(self) -> None:
        self.context.show_progress("answer", self.state.step)
        if self.context.stop_requested():
            raise StopRequested

    def _add_time(self, name: str, start: float) -> None:
        """Add the time since `start` to one of the state's times, and report them."""
        seconds = getattr(self.state.time, name) + time.monotonic() - start
        self.state = dataclasses.replace(self.state, time=dataclasses.replace(self.state.time, **{name: seconds}))
        self.context.report(time=schema.to_json(self.state.time))

    # The end ----------------------------------------------------------------------------------------------------------

    def communication_percent(self) -> float | None:
        """Return the share of the median step spent waiting for gradients, by the rank that waits least in each."""
        ranks = self.group.gather_objects(self._waits)
        return None if self.group.is_single or not self._waits else waited_percent(ranks)

    def adapter(self) -> tuple[int, dict[str, Any]]:
        """Return the final adapter's step and tensors: the best adapter, else the last. Rank 0 only."""
        best = None if self.checkpoint_manager is None else self.checkpoint_manager.best
        if self.state.best_step is not None and best is not None:
            return self.state.best_step, best
        return self.state.step, self.weights.copy_adapter()

    def set_adapter(self, adapter: dict[str, Any]) -> None:
        """Copy an adapter's tensors into the weights."""
        for name, tensor in self.weights.adapter.items():
            tensor.copy_(adapter[name])
