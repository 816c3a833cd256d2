"""The score of a training: answers to held-out prompts on all ranks, scored by rank 0, before and after.

The answers before the training are the base's, which adapters with B = 0 give at any time, or those of the adapter that
it began from. They are computed at step 0 and stored next to the checkpoints, so that a restart does not repeat them. A
failure of answers or scores is part of the result and does not fail the training.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from bench.data.inputs import InputError
from bench.data.masking import encode_prompt
from bench.records.checksummed import Checksummed, ResultError
from bench.records.score import TrainingScore
from bench.records.status import escape_controls
from bench.workloads.finetune import score
from bench.workloads.finetune.answers import AnswerGenerator, PromptCase, prompt_cases
from bench.workloads.finetune.checkpoint import Identity
from bench.workloads.finetune.resume import verify_init_adapter
from bench.workloads.finetune.score import AnsweredRow, RowScore, Scoring
from bench.workloads.finetune.training_set import TrainingSet
from bench.workloads.ranks.process import RankGroup

BASE_SCORE_FILE = "score-before.json"
PROBE = "\N{FOUR DOT PUNCTUATION}"  # no template's text contains it
MAX_FAILURE_CHARS = 300
PROGRESS_SEC = 0.5


class StopRequested(Exception):
    """Request to stop that came while answers were generated or scored."""


@dataclass(frozen=True, kw_only=True)
class ScoredAnswers(Checksummed):
    """Answers and their scores in the order of the prompts; both are empty after a `failure`.

    `questions` and `scorer` are digests of the prompts and base, and of the scoring method.
    """

    FILE, KIND = BASE_SCORE_FILE, "score before training"

    questions: str
    scorer: str
    answers: list[str]
    scores: list[RowScore]
    failure: str | None = None

    @property
    def mean(self) -> tuple[float, float, float] | None:
        """Mean score and its interval; None without a score."""
        return score.mean_score(self.scores)


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
        make_generator: Callable[..., AnswerGenerator],
        check: Callable[[], None],
    ) -> None:
        examples = training_set.data.validation
        chosen = score.spread_indices(len(examples), training_set.training.score_rows)
        self._cases = prompt_cases([examples[index] for index in chosen], len(chosen))
        self._scoring, self._context, self._group = scoring, context, context.group
        self._adapter, self._training = adapter, training_set.training
        self._generator, self._check = make_generator(on_step=check), check
        self._texts = RowTexts(tokenizer, training_set.training.data.special_tokens)
        parts = [
            context.identity.model,
            training_set.training.init_sha256,
            *([case.prompt, case.reference] for case in self._cases),
        ]
        self._questions = hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def measure(self) -> ScoredAnswers:
        """Answer the prompts with the present weights and score the answers. Raises StopRequested on all ranks."""
        answers, failure = self._answer()
        result = self._make_result(answers, failure)
        result = result if failure is not None else self._score(result)
        self._context.report(mean_score=None if result.mean is None else result.mean[0])
        return result

    def _make_result(self, answers: list[str], failure: str | None) -> ScoredAnswers:
        return ScoredAnswers(
            questions=self._questions, scorer=self._scoring.digest, answers=answers, scores=[], failure=failure
        )

    def score_base(self) -> ScoredAnswers:
        """Return the score before the training: stored, or computed with the first weights. Raises StopRequested."""
        stored = self._load_base()
        if stored is not None:
            return stored
        weights = self._first_weights()
        if isinstance(weights, str):
            self._context.report(log=f"score: {weights}", flag=f"score: {weights}")
            return self._make_result([], weights)
        kept = {name: self._adapter[name].clone() for name in weights}
        try:
            for name, tensor in weights.items():
                self._adapter[name].copy_(tensor)
            result = self.measure()
        finally:
            for name, tensor in kept.items():
                self._adapter[name].copy_(tensor)
        problem = result.failure or self._store_base(result)
        if problem is None and result.mean is None and result.scores:
            first = result.scores[0]
            problem = f"no row has a score: {'' if first.fault is None else first.fault.label}: {first.detail}"
        if problem is not None:
            self._context.report(log=f"score: {problem}", flag=f"score: {problem}")
        return result

    def compare(self) -> TrainingScore:
        """Compare the base with the present weights. Raises StopRequested."""
        before, after = self.score_base(), self.measure()
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

    def _first_weights(self) -> dict[str, Any] | str:
        """Return tensors of the adapter before the first step: B = 0, or those that it began from; or why not."""
        if self._training.init_adapter is None:
            return {name: tensor.new_zeros(()) for name, tensor in self._adapter.items() if "lora_B" in name}
        first: dict[str, Any] | str = ""
        if self._group.rank == 0:
            try:
                first = load_file(verify_init_adapter(self._training.init_adapter, self._training.init_sha256))
            except (InputError, SafetensorError) as error:
                first = escape_controls(str(error))
        return self._group.broadcast_object(first)  # type: ignore[no-any-return]

    def _load_base(self) -> ScoredAnswers | None:
        """Return the stored result; None without one of these prompts and this base."""
        stored: ScoredAnswers | None = None
        if self._context.checkpoints is not None:
            try:
                stored = ScoredAnswers.read(self._context.checkpoints / BASE_SCORE_FILE)
            except ResultError:
                stored = None  # absent, or damaged: the answers are computed again
        stored = self._group.broadcast_object(stored)
        if stored is None or stored.questions != self._questions or len(stored.answers) != len(self._cases):
            return None
        if stored.scorer == self._scoring.digest and len(stored.scores) == len(self._cases):
            return stored
        return self._score(replace(stored, scorer=self._scoring.digest))

    def _store_base(self, result: ScoredAnswers) -> str | None:
        """Store the result on rank 0; return why it cannot be stored, or None."""
        if self._context.checkpoints is None:
            return None
        try:
            result.write(self._context.checkpoints)
        except OSError as error:
            return f"{self._context.checkpoints}: the answers before the training are not stored: {error.strerror}"
        return None

    def _answer(self) -> tuple[list[str], str | None]:
        """Return all answers, and the failure of any rank. Raises StopRequested."""
        group, texts, failure, is_stopped = self._group, list[str](), None, False
        share = self._cases[group.rank :: group.world_size]
        try:
            texts = [
                answer.text
                for answer in self._generator.generate(
                    [case.prompt for case in share], [case.max_tokens for case in share]
                )
            ]
        except StopRequested:
            is_stopped = True
        except Exception as error:  # noqa: BLE001 - the result names it, and the training keeps its own result
            failure = escape_controls(f"rank {group.rank}: {type(error).__name__}: {error}")[:MAX_FAILURE_CHARS]
        gathered = group.gather_objects((texts, failure, is_stopped))
        if any(stopped for _, _, stopped in gathered):
            raise StopRequested
        failure = next((each for _, each, _ in gathered if each is not None), None)
        if failure is not None:
            return [], failure
        answers = [""] * len(self._cases)
        for rank, (rank_texts, _, _) in enumerate(gathered):
            answers[rank :: group.world_size] = rank_texts
        return answers, None

    def _score(self, result: ScoredAnswers) -> ScoredAnswers:
        """Score the answers on rank 0, for all ranks. Raises StopRequested."""
        outcome: list[RowScore] | str | None = None
        if self._group.rank == 0:
            try:
                outcome = self._scoring.score(self._texts.rows(self._cases, result.answers), self._check)
            except StopRequested:
                outcome = None
            except OSError as error:
                outcome = escape_controls(f"the score's process cannot be started: {error}")[:MAX_FAILURE_CHARS]
        outcome = self._group.broadcast_object(outcome)
        if outcome is None:
            raise StopRequested
        if isinstance(outcome, str):
            return replace(result, answers=[], failure=outcome)
        return replace(result, scores=outcome)
