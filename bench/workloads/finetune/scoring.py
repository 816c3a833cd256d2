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
from bench.records.score import TrainingScore
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
    stop_requested: Callable[[], bool]
    checkpoints: Path | None  # None on all ranks except rank 0
    identity: Identity
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
        scores = list[RowScore]()
        answers, failure = self._answer()
        if failure is None:
            rows = self._texts.rows(self._cases, answers)
            row_scores, failure = self._on_first_rank(lambda: self._scoring.score(rows, self._check))
            scores = row_scores or []
        mean = score.mean_score(scores)
        self._context.report(mean_score=None if mean is None else mean.mean)
        return ScoredAnswers(key=self._key, answers=answers, scores=scores, failure=failure)

    def measure_base(self) -> ScoredAnswers:
        """Measure with the first weights. Raises StopRequested."""
        weights, failure = self._first_weights()
        if failure is not None:
            self._flag(failure)
            return ScoredAnswers(key=self._key, answers=[], scores=[], failure=failure)
        kept = {name: self._adapter[name].clone() for name in weights}
        try:
            for name, tensor in weights.items():
                self._adapter[name].copy_(tensor)
            result = self.measure()
        finally:
            for name, tensor in kept.items():
                self._adapter[name].copy_(tensor)
        problem = result.failure
        if problem is None and result.scores and all(row.score is None for row in result.scores):
            first = result.scores[0]
            problem = f"no row has a score: {'' if first.fault is None else first.fault.label}: {first.detail}"
        if problem is not None:
            self._flag(problem)
        return result

    def _flag(self, problem: str) -> None:
        self._context.report(log=f"score: {problem}", flag=f"score: {problem}")

    def compare(self, before: ScoredAnswers | None) -> TrainingScore:
        """Compare the base with the present weights; `before` is used if this method gave it. Raises StopRequested."""
        if before is None or before.key != self._key or before.failure is not None:
            before = self.measure_base()
        after = self.measure()
        failure = after.failure or before.failure
        rows = []
        if failure is None:
            pairs = [
                list(zip(self._texts.rows(self._cases, each.answers), each.scores, strict=True))
                for each in (before, after)
            ]
            rows = score.pair_rows([case.location for case in self._cases], *pairs)
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

    def _first_weights(self) -> tuple[Mapping[str, Any], str | None]:
        """Return tensors of the adapter before the first step, B = 0 or those that it began from; or why not."""
        folder = self._training.init_adapter
        if folder is None:
            return {name: tensor.new_zeros(()) for name, tensor in self._adapter.items() if "lora_B" in name}, None
        weights, failure = self._on_first_rank(
            lambda: load_file(verify_init_adapter(folder, self._training.init_sha256))
        )
        return weights or {}, failure

    def _answer(self) -> tuple[list[str], str | None]:
        """Return all answers, and the failure of any rank. Raises StopRequested."""
        group, answers = self._group, [""] * len(self._cases)
        share = self._cases[group.rank :: group.world_size]
        prompts, limits = [case.prompt for case in share], [case.max_tokens for case in share]
        gathered = group.gather_objects(self._try(lambda: self._generator.generate(prompts, limits)))
        _raise_stop(gathered)
        failure = next((each for _, each, _ in gathered if each is not None), None)
        if failure is not None:
            return [], failure
        for rank, (rank_answers, _, _) in enumerate(gathered):
            answers[rank :: group.world_size] = [answer.text for answer in rank_answers]
        return answers, None

    def _on_first_rank(self, work: Callable[[], T]) -> tuple[T | None, str | None]:
        """Return what `work` returns on rank 0, or its failure, on all ranks. Raises StopRequested."""
        done = self._group.broadcast_object(self._try(work) if self._group.rank == 0 else None)
        _raise_stop([done])
        return done[0], done[1]

    def _try(self, work: Callable[[], T]) -> tuple[T | None, str | None, bool]:
        """Return what `work` returns, its failure, and whether it was stopped: other ranks wait for this one."""
        try:
            return work(), None, False
        except StopRequested:
            return None, None, True
        except Exception as error:  # noqa: BLE001 - the result names it, and the training keeps its own result
            failure = f"rank {self._group.rank}: {type(error).__name__}: {error}"
            return None, escape_controls(failure)[:MAX_FAILURE_CHARS], False


def _raise_stop(results: Sequence[tuple[Any, str | None, bool]]) -> None:
    if any(is_stopped for _, _, is_stopped in results):
        raise StopRequested
