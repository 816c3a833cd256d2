"""The training itself: steps, evaluations and checkpoints, from the newest checkpoint to the end.

Everything that a step computes follows from the weights, the optimizer's state, the step's number, the data and the
settings; nothing from when or how often the training was stopped. So a training that was killed anywhere ends with the
adapter of one that was not, bit by bit, on the same kind of device and as many ranks.
"""

import contextlib
import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.harness.termination import NonFiniteLoss
from bench.qlora.step import TrainingStep
from bench.records import Trial, schema
from bench.records.training import SampleAnswer, Training
from bench.workloads.distributed.rank import RanksDiffer
from bench.workloads.finetune import evaluate
from bench.workloads.finetune.checkpoints.checkpoint import History, State
from bench.workloads.finetune.checkpoints.checkpoint_manager import CheckpointManager, restore, write_adapter
from bench.workloads.finetune.checkpoints.resume import Identity, Journal, ResumePoint, require_room
from bench.workloads.finetune.checkpoints.weights import Weights
from bench.workloads.finetune.steps import schedule
from bench.workloads.finetune.steps.gradients import Gradients
from bench.workloads.finetune.steps.group import RankGroup
from bench.workloads.finetune.steps.step import GlobalStep, RowOfStep
from bench.workloads.finetune.training_set import RowRange, TrainingSet, targets_of

__all__ = ["TrainContext", "Trainer", "deterministic", "write_adapter"]
ZERO_STEPS = 3
MOVE_SEC = 0.5
HIDDEN_SHARE = 2 / 3  # of a row's time: its backward pass, behind which gradients travel
GOAL_PERCENT = 2.0
NAMED_ROWS = 5


class NoTrainableTokens(ArithmeticError):
    """Steps change nothing: going on would train on nothing and report success."""


@dataclass(frozen=True, kw_only=True)
class TrainContext:
    """What a training runs in: `report` takes what people and the record are told, `move` the place for the parent's
    watch, `asked` says whether somebody asked this rank to stop. `began` (monotonic) is this attempt's start: its hours
    count from there, because loading is paid for, too."""

    group: RankGroup
    report: Callable[..., None]
    move: Callable[[str, int], None]
    asked: Callable[[], bool]
    checkpoints: Path | None  # rank 0's alone
    identity: Identity
    began: float = dataclasses.field(default_factory=time.monotonic)


class Trainer:
    """A training on this rank. `run` returns why it ended: finished, early, max_hours or stopped."""

    def __init__(
        self,
        modules: torch_stack.Stack,
        trial: Trial,
        training: Training,
        step: TrainingStep,
        peft_model: Any,
        tokenizer: Any,
        material: TrainingSet,
        world: TrainContext,
    ) -> None:
        self.modules, self.torch, self.trial, self.training = modules, modules.torch, trial, training
        self.step, self.peft_model, self.tokenizer = step, peft_model, tokenizer
        self.material, self.world, self.group = material, world, world.group
        trained = [parameter for parameter in step.model.parameters() if parameter.requires_grad]
        self.gradients = Gradients(self.torch, trained, self.group, travels=training.gradients)
        if not self.group.is_alone:
            step.may_capture = False  # gradients travel while backward runs
        self.rows = RowRange(material, tokenizer, pin_memory=bool(trained[0].is_cuda))
        self.steps = material.steps()
        self.global_step = GlobalStep(
            self.torch, step, self.gradients, seed=trial.seed, most_norm=training.max_gradient_norm, further=2
        )
        self.weights = Weights(modules, step, peft_model)
        self.state, self.history = State(step=0, seconds=0.0), History()
        self.keeper: CheckpointManager | None = None
        self.journal: Journal | None = None
        self._moved, self._waited, self._spent = 0.0, 0.0, 0.0
        self._zeros = self._told = 0
        if world.checkpoints is not None:
            say = lambda words: world.report(log=words, flag=words)  # noqa: E731 - one line for two uses
            self.keeper = CheckpointManager(
                self.torch, world.checkpoints, world.identity, self.weights,
                world_size=self.group.world_size, keep=training.keep_checkpoints, say=say,
            )  # fmt: skip
            self.journal = Journal(world.checkpoints)
            require_room(world.checkpoints, (training.keep_checkpoints + 3) * (self.weights.bytes() + (1 << 20)))

    # Before the first step --------------------------------------------------------------------------------------------

    def rehearse(self) -> None:
        """Run the heaviest row once, so that memory runs out here or never, and say what communication will cost."""
        example = [self.material.data.training[place] for place in self.material.heaviest()]
        row = RowOfStep(place=0, batch=self.rows(example), targets=targets_of(example))
        times, sent = [], []
        for _ in range(1 if self.group.is_alone and not self.step.may_capture else 2):
            self.step.wait()
            start = time.perf_counter()
            self.step.clock.begin()
            self.step.gradient(self.step.inputs(row.batch), 1.0)
            self.step.wait()
            times.append(time.perf_counter() - start)
        for _ in range(0 if self.group.is_alone else 3):
            self.group.wait()
            start = time.perf_counter()
            self.gradients.clear()
            self.gradients.finish(self.global_step.scalars)
            self.step.wait()
            sent.append(time.perf_counter() - start)
        self.gradients.clear()
        self.step.wait()
        if sent:
            self._predict(max(self.group.objects(times[-1])), max(self.group.objects(min(sent))))

    def _predict(self, row_sec: float, sent_sec: float) -> None:
        """Say which share of a step the exchange of gradients will take, and what would hide it."""
        rows = math.ceil(self.training.rows_per_step / self.group.world_size)
        percent, enough = predicted_communication(row_sec, sent_sec, rows, len(self.gradients.buckets))
        words = (
            f"communication is predicted to take {percent:.1f} % of a step: {self.gradients.bytes / 1e6:,.1f} MB of "
            f"gradients travel in {sent_sec:.3g} s"
        )
        if percent > GOAL_PERCENT:
            words += f"; rows_per_step {enough * self.group.world_size} would make it {GOAL_PERCENT:g} %"
        self.world.report(log=words, communication_predicted_percent=percent)

    def begin(self, found: ResumePoint | None) -> None:
        """Become what the checkpoint holds (rank 0's, None for none), on every rank."""
        best = None
        if found is not None:
            best = restore(found.path, self.weights)
            self.state, self.history = found.state, found.history
            norms = self.history.columns["gradient_norm"]
            self._zeros = next((n for n in range(ZERO_STEPS) if n >= len(norms) or norms[-1 - n] != 0.0), ZERO_STEPS)
        self.state = schema.from_json(State, self.group.from_first(schema.to_json(self.state)))
        self._zeros = self.group.from_first(self._zeros)
        counters = self.group.from_first(self.weights.counters())
        if not self.group.is_alone:
            flat = self.weights.flat()
            self.group.copy_from_first_(flat)
            self.weights.become(flat)
            self.weights.set_counters(counters)
        if self.keeper is not None and found is not None:
            self.keeper.newest = found.state.step
            if best is not None and self.state.best_step is not None:
                self.keeper.best = self.state.best_step, best
            elif self.state.best_step == self.state.step:
                self.keeper.keep_best(self.state.step)

    # The steps --------------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Train until the end, or until somebody asks to stop. Raises NotFinite, NothingLearned and RanksDiffer."""
        training = self.training
        started, before = self.world.began, self.state.seconds
        taken = time.monotonic()
        if not self.state.evaluations and (self.state.step == 0 or self.material.data.validation):
            self._look_before()
        elif self._is_due():  # stopped between this step and its measurement
            self._evaluate()
        upcoming = self._upcoming()
        ready = next(upcoming, None)
        while ready is not None and not self._is_early():
            number, (rows, targets, every) = self.state.step + 1, ready
            spent = before + time.monotonic() - started
            is_over = training.max_hours is not None and spent > training.max_hours * 3600.0
            start = time.perf_counter()
            self._move("train", number)
            factor = schedule.factor(training, number, self.steps)
            self.global_step.gradient(number, rows, targets, (float(self.world.asked()), float(is_over)))
            self.global_step.update(factor)
            ready = next(upcoming, None)  # while the device computes
            loss, norm, (asked, over) = self.global_step.read()
            self._check(number, loss, norm, rows)
            seconds = time.perf_counter() - start
            self._waited += self.gradients.waited_sec()
            self._spent += seconds
            self._note(number, loss, norm, factor, targets, every, seconds)
            self.state = dataclasses.replace(self.state, step=number, seconds=before + time.monotonic() - started)
            if asked or over:
                self._checkpoint(wait=True)
                return "stopped" if asked else "max_hours"
            if self._is_due():
                self._evaluate()
            if time.monotonic() - taken >= training.checkpoint_sec and self._checkpoint():
                taken = time.monotonic()
        if self.material.data.validation and all(
            evaluation.step != self.state.step for evaluation in self.state.evaluations
        ):
            self._evaluate()
        self._checkpoint(wait=True)
        self._compare()
        return "early" if self._is_early() and self.state.step < self.steps else "finished"

    def _upcoming(self) -> Iterator[tuple[list[RowOfStep], int, list[list[Any]]]]:
        """(this rank's rows, the global batch's targets, the examples of each of its rows), step by step."""
        data = self.material.data.training
        for batch in self.material.batches(self.state.step):
            every = [[data[place] for place in places] for places in batch]
            targets = [targets_of(examples) for examples in every]
            mine = [
                RowOfStep(place=place, batch=self.rows(every[place]), targets=targets[place])
                for place in range(self.group.rank, len(batch), self.group.world_size)
            ]
            yield mine, sum(targets), every

    def _check(self, number: int, loss: float, norm: float, rows: Sequence[RowOfStep]) -> None:
        if not math.isfinite(loss) or not math.isfinite(norm):
            bad = [
                row.place
                for row, mean in zip(rows, self.global_step.losses, strict=True)
                if not math.isfinite(float(mean))
            ]
            places = sorted(place for each in self.group.objects(bad) for place in each)
            what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
            raise NonFiniteLoss(f"{what} at step {number} ({self._named(number, places)}); try a lower learning_rate")
        self._zeros = self._zeros + 1 if norm == 0.0 else 0
        if loss == 0.0 or self._zeros >= ZERO_STEPS:
            what = "the loss is 0" if loss == 0.0 else f"the gradient's norm was 0 for {ZERO_STEPS} steps"
            raise NoTrainableTokens(f"{what} at step {number} ({self._named(number, [])}): nothing is being learned")

    def _named(self, number: int, places: Sequence[int]) -> str:
        """The lines of these rows of a step; of all its rows where none is given."""
        batch = next(self.material.batches(number - 1))
        chosen = [batch[place] for place in places] or batch
        data = self.material.data.training
        names = dict.fromkeys(f"{data[place].file}: line {data[place].line}" for row in chosen for place in row)
        shown = list(names)[:NAMED_ROWS]
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        rows = f"rows {', '.join(map(str, places))}" if places else "all its rows"
        return f"{rows}: {', '.join(shown)}{more}"

    def _note(
        self, number: int, loss: float, norm: float, factor: float, targets: int, every: list[list[Any]], seconds: float
    ) -> None:
        if self.journal is None:
            return
        examples = [example for row in every for example in row]
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
        self.history.add(**values)
        self.journal.note(step=number, sec=round(seconds, 6))
        self.world.report(step={**values, "rows": len(every)}, checkpoints=self.told())

    def _checkpoint(self, *, wait: bool = False) -> bool:
        keeper = self.keeper
        if keeper is None or (keeper.newest == self.state.step and not wait):
            return keeper is None
        if keeper.newest == self.state.step:
            keeper.finish()
            return True
        state = dataclasses.replace(self.state, checkpoints=[*self.state.checkpoints, *keeper.written])
        return keeper.take(state, self.history, wait=wait) is not None

    def told(self) -> list[dict[str, Any]]:
        """The facts of checkpoints that have been written since the last call."""
        if self.keeper is None:
            return []
        fresh = self.keeper.written[self._told :]
        self._told += len(fresh)
        return [schema.to_json(one) for one in fresh]

    def _move(self, phase: str, number: int) -> None:
        now = time.monotonic()
        if now - self._moved >= MOVE_SEC:
            self._moved = now
            self.world.move(phase, number)

    # Looking at what was learned --------------------------------------------------------------------------------------

    def _look_before(self) -> None:
        if self.material.data.validation:
            self._evaluate()
        if self.state.step == 0 and self.training.prompts and self.group.rank == 0:
            self.world.move("answer", 0)
            self.state = dataclasses.replace(self.state, answers=self._answers(), asked=list(self.training.prompts))
        self.group.wait()

    def _answers(self) -> list[str]:
        training = self.training
        return evaluate.generate_answers(
            self.modules, self.step, self.peft_model, self.tokenizer, training.prompts, training.answer_tokens
        )

    def _evaluate(self) -> None:
        """Measure the held-out loss after the state's step; every rank knows it."""
        number, held_out = self.state.step, self.material.data.validation

        def moved(row: int) -> None:
            self._move("evaluate", row)

        losses = evaluate.losses_of(self.torch, self.step, self.material, self.rows, self.group, moved)
        first = self.state.first_losses
        found = evaluate.evaluation(number, losses, first, [targets_of([example]) for example in held_out])
        if not math.isfinite(found.loss):
            raise NonFiniteLoss(f"the held-out loss is {found.loss} after step {number}; try a lower learning_rate")
        lowest = min((evaluation.loss for evaluation in self.state.evaluations if evaluation.is_best), default=math.inf)
        is_best = number > 0 and found.loss < lowest
        found = dataclasses.replace(found, is_best=is_best)
        self.state = dataclasses.replace(
            self.state,
            evaluations=[*self.state.evaluations, found],
            first_losses=first or losses,
            best_step=number if is_best else self.state.best_step,
        )
        self.world.report(evaluation=schema.to_json(found))
        if is_best and self.keeper is not None:
            self.keeper.keep_best(number)
            self._checkpoint(wait=False)

    def _is_due(self) -> bool:
        """Whether the held-out loss is to be measured after the state's step, and was not yet."""
        step, every = self.state.step, self.training.evaluate_every
        is_between = every > 0 and 0 < step < self.steps and step % every == 0
        return is_between and all(evaluation.step != step for evaluation in self.state.evaluations)

    def _is_early(self) -> bool:
        """Whether the held-out loss has not become lower for too long."""
        later = [evaluation for evaluation in self.state.evaluations if evaluation.step > 0]
        since = next((n for n, one in enumerate(reversed(later)) if one.is_best), len(later))
        return 0 < self.training.patience <= since

    # The end ----------------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        digest = hashlib.sha256(self.weights.flat().numpy().tobytes()).hexdigest()
        for rank, other in enumerate(self.group.objects(digest)):
            if other != digest:
                raise RanksDiffer(f"rank {rank} holds another adapter than rank {self.group.rank}")

    def communication_percent(self) -> float | None:
        """The share of the steps in which even the rank that waits least waited for the others."""
        waits = self.group.objects((self._waited, self._spent))
        return None if self.group.is_alone or not self._spent else min(100.0 * w / s for w, s in waits)

    def adapter(self) -> tuple[int, dict[str, Any]]:
        """The step and the tensors of the adapter that comes home: the best, or the last. Rank 0's."""
        if self.keeper is not None and self.keeper.best is not None:
            return self.keeper.best
        return self.state.step, {name: tensor.to("cpu", copy=True) for name, tensor in self.weights.adapter.items()}

    def sample_answers(self, adapter: dict[str, Any]) -> list[SampleAnswer]:
        """What the model answered before, and answers with this adapter. Rank 0's; the weights are the adapter's
        afterwards."""
        for name, tensor in self.weights.adapter.items():
            tensor.copy_(adapter[name])
        after = self._answers() if self.training.prompts else []
        before = dict(zip(self.state.asked or self.training.prompts, self.state.answers, strict=False))
        return [
            SampleAnswer(prompt=prompt, before=before.get(prompt), after=now)
            for prompt, now in zip(self.training.prompts, after, strict=True)
        ]


def predicted_communication(row_sec: float, sent_sec: float, rows: int, buckets: int) -> tuple[float, int]:
    """(per cent of a step that is spent waiting for gradients, rows a rank that make it `GOAL_PERCENT`).

    Gradients travel behind the last row's backward pass; at least the last bucket does not.
    """
    waits = max(sent_sec / buckets, sent_sec - HIDDEN_SHARE * row_sec)
    goal = GOAL_PERCENT / 100.0
    return 100.0 * waits / (rows * row_sec + waits), max(rows, math.ceil(waits * (1.0 - goal) / (goal * row_sec)))


@contextlib.contextmanager
def deterministic(torch: Any, recipe: str) -> Iterator[None]:
    """Kernels that add in a fixed order. Those of `fast` do anyway, where it matters."""
    if recipe.startswith("fast"):
        yield
        return
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
