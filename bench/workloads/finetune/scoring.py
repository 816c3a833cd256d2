"""The score of a training: answers to held-out prompts on all ranks, scored by rank 0, before and after.

The answers before the training are the base's, which adapters with B = 0 give at any time, or those of the adapter that
it began from. They are computed at step 0 and are part of the training's state, so that an attempt that resumes from a
checkpoint does not repeat them. A failure of answers or scores is part of the result and does not fail the training.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file

from bench.data.inputs import InputError
from bench.data.masking import encode_prompt
from bench.records.score import ScoredRow, TrainingScore
from bench.records.status import escape_controls
from bench.workloads.finetune import score
from bench.workloads.finetune.answers import AnswerGenerator, PromptCase, prompt_cases
from bench.workloads.finetune.checkpoint import Identity
from bench.workloads.finetune.resume import verify_init_adapter
from bench.workloads.finetune.score import AnsweredRow, RowScore, ScoredAnswers, Scoring
from bench.workloads.finetune.training_set import TrainingSet
from bench.workloads.ranks.process import RankGroup

PROBE = "\N{FOUR DOT PUNCTUATION}"  # no template's text contains it
MAX_FAILURE_CHARS = 300
PROGRESS_SEC = 0.5
T = TypeVar("T")


class StopRequested(Exception):
    """Request to stop that came while answers were generated or scored."""


class ScoreFailed(Exception):
    """Failure of a rank's answers or scores."""


@dataclass(kw_only=True)
class TrainContext:
    """The environment of a training.

    `report` sends a line to the parent, `on_progress` updates the heartbeat, `stop_requested` returns True once this
    rank has been asked to stop. `started` (monotonic) is this attempt's start, from which its hours count, because
    loading costs money too.
    """

    group: RankGroup
    report: Callable[..., None]
    on_progress: Callable[[str, int], None]
    identity: Identity
    stop_requested: Callable[[], bool] = lambda: False
    checkpoints: Path | None = None  # None on all ranks except rank 0
    started: float = field(default_factory=time.monotonic)
    _shown_at: float = 0.0

    def show_progress(self, phase: str, number: int) -> None:
        """Call `on_progress`, but at most every PROGRESS_SEC."""
        now = time.monotonic()
        if now - self._shown_at >= PROGRESS_SEC:
            self._shown_at = now
            self.on_progress(phase, number)


class RowTexts:
    """Texts of the rows of a score, from the tokens of their prompts and expected answers."""

    def __init__(self, tokenizer: Any, special_tokens: str) -> None:
        self._tokenizer, self._special_tokens = tokenizer, special_tokens

    def rows(self, cases: Sequence[PromptCase], answers: Sequence[str]) -> list[AnsweredRow]:
        """Return the row of each answer."""
        return [
            AnsweredRow(
                prompt=question or self._tokenizer.decode(case.prompt),
                answer=answer,
                expected=self._tokenizer.decode(case.reference, skip_special_tokens=True).strip(),
            )
            for case, question, answer in zip(cases, self.questions(cases), answers, strict=True)
        ]

    def questions(self, cases: Sequence[PromptCase]) -> list[str | None]:
        """Return the text of each prompt's only question; None for a prompt of another form."""
        head, tail = self._template_ends()
        questions: list[str | None] = []
        for text in (self._tokenizer.decode(case.prompt) for case in cases):
            question = text[len(head) : len(text) - len(tail)]
            is_whole = bool(tail) and text == head + question + tail
            has_control = any(map(question.__contains__, self._tokenizer.all_special_tokens))
            questions.append(question if is_whole and not has_control else None)
        return questions

    def _template_ends(self) -> tuple[str, str]:
        """Return what the chat template writes before and after a first question."""
        messages = [{"role": "user", "content": PROBE}]
        try:
            ids = encode_prompt(self._tokenizer, "score", messages, self._special_tokens, lambda _: None)
        except InputError:  # a template that needs more than one question: prompts are shown whole
            return "", ""
        head, _, tail = str(self._tokenizer.decode(ids)).partition(PROBE)
        return head, tail


class TrainingScorer:
    """Scoring of one training, on every rank. All public methods are called by all ranks in the same order.

    `adapter` are the adapters' tensors by name. `check` is called often, and raises StopRequested after a stop.
    """

    def __init__(
        self,
        scoring: Scoring,
        training_set: TrainingSet,
        tokenizer: Any,
        context: TrainContext,
        adapter: Mapping[str, Any],
        generator: AnswerGenerator,
        check: Callable[[], None],
    ) -> None:
        examples = training_set.data.validation
        chosen = score.spread_indices(len(examples), training_set.training.score_rows)
        self._cases = prompt_cases([examples[index] for index in chosen], len(chosen))
        self._scoring, self._context, self._group = scoring, context, context.group
        self._adapter, self._training = adapter, training_set.training
        self._generator, self._check = generator, check
        self._texts = RowTexts(tokenizer, training_set.training.data.special_tokens)
        parts = [
            *(context.identity.model, training_set.training.init_sha256, scoring.method, scoring.sha256),
            *([case.prompt, case.reference] for case in self._cases),
        ]
        self._key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def measure(self) -> ScoredAnswers:
        """Answer the prompts with the present weights and score the answers. Raises StopRequested on all ranks."""
        rank, ranks = self._group.rank, self._group.world_size
        answers, scores, failure = [""] * len(self._cases), list[RowScore](), None
        share = self._cases[rank::ranks]
        prompts, limits = [case.prompt for case in share], [case.max_tokens for case in share]
        try:
            for other, part in enumerate(self._on_ranks(lambda: self._generator.generate(prompts, limits))):
                answers[other::ranks] = [answer.text for answer in part]
            rows = self._texts.rows(self._cases, answers)
            scores = self._on_ranks(lambda: self._scoring.score(rows, self._check) if rank == 0 else [])[0]
        except ScoreFailed as error:
            answers, failure = [], str(error)
        self._context.report(mean_score=score.mean_score(scores))
        return ScoredAnswers(key=self._key, answers=answers, scores=scores, failure=failure)

    def measure_base(self) -> ScoredAnswers:
        """Measure with the first weights: B = 0, or those that the training began from. Raises StopRequested."""
        kept: dict[str, Any] = {}
        try:
            weights = self._first_weights()
            kept = {name: self._adapter[name].clone() for name in weights}
            for name, tensor in weights.items():
                self._adapter[name].copy_(tensor)
            result = self.measure()
        except ScoreFailed as error:
            result = ScoredAnswers(key=self._key, answers=[], scores=[], failure=str(error))
        finally:
            for name, tensor in kept.items():
                self._adapter[name].copy_(tensor)
        problem = result.failure
        if problem is None and result.scores and all(row.score is None for row in result.scores):
            first = result.scores[0]
            problem = f"no row has a score: {'' if first.fault is None else first.fault.label}: {first.detail}"
        if problem is not None:
            self._context.report(log=f"score: {problem}", flag=f"score: {problem}")
        return result

    def compare(self, before: ScoredAnswers | None) -> TrainingScore:
        """Compare the base with the present weights; `before` is used if this method gave it. Raises StopRequested."""
        if before is None or before.key != self._key or before.failure is not None:
            before = self.measure_base()
        after = self.measure()
        failure, rows = after.failure or before.failure, list[ScoredRow]()
        if failure is None:
            texts = self._texts.rows(self._cases, after.answers)
            answered = zip(texts, before.answers, before.scores, after.scores, strict=True)
            rows = [score.pair_row(index + 1, self._cases[index].location, *row) for index, row in enumerate(answered)]
        unscored = [row for row in rows if row.fault is not None]
        return TrainingScore(
            method=self._scoring.method,
            measures=score.compare(before.scores, after.scores) if rows else [],
            places=[row.place for row in rows],
            before=[row.before_score for row in rows],
            after=[row.after_score for row in rows],
            shown=rows[: score.SHOWN_ROWS],
            unscored=unscored[: score.NAMED_ROWS],
            unscored_rows=len(unscored),
            failure=failure,
        )

    def _first_weights(self) -> Mapping[str, Any]:
        """Return tensors of the adapter before the first step. Raises ScoreFailed."""
        folder, weights = self._training.init_adapter, dict[str, Any]()
        if folder is None:
            return {name: tensor.new_zeros(()) for name, tensor in self._adapter.items() if "lora_B" in name}

        def load() -> None:
            if self._group.rank == 0:
                weights.update(load_file(verify_init_adapter(folder, self._training.init_sha256)))

        self._on_ranks(load)
        return dict(self._group.broadcast_object(weights))

    def _on_ranks(self, work: Callable[[], T]) -> list[T]:
        """Return what `work` returns on each rank, on all ranks. Raises StopRequested and ScoreFailed on all ranks."""
        result: Any = None
        error: Exception | None = None
        try:
            result = work()
        except StopRequested as stop:
            error = stop
        except Exception as failed:  # noqa: BLE001 - the result names it, and the training keeps its own result
            text = f"rank {self._group.rank}: {type(failed).__name__}: {failed}"
            error = ScoreFailed(escape_controls(text)[:MAX_FAILURE_CHARS])
        done = self._group.gather_objects((result, error))
        errors = [each for _, each in done if each is not None]
        for each in sorted(errors, key=lambda each: isinstance(each, ScoreFailed)):  # a stop comes first
            raise each
        return [each for each, _ in done]
