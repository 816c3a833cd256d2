"""Warnings before a training: what it shows or learns little of, by code, with the numbers that would change that."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

from bench.records import Trial
from bench.records.training import DataReport, Training
from reports.formatting import count

ENOUGH_STEPS, AT_RATE = 30, 2e-4  # at a higher learning rate fewer steps move an adapter as far
MAX_RATE = 2e-3  # the highest learning rate that is proposed
MAX_EPOCHS = 10
MIN_HELD_OUT = 20
MAX_LOST_PERCENT = 5  # lost rows or tokens, or repeated lines
MAX_SOURCE_PERCENT = 90  # tokens from one of several files
LENGTH_STEP = 64  # a proposed length is a multiple of it
MAX_HELD_OUT_SHARE = 0.5  # the largest train.validation_fraction


@dataclass(frozen=True)
class DataWarning:
    """A warning: its code, the values that it is about, and the sentence, which names a setting and its value."""

    code: str
    values: dict[str, float]
    text: str


def find_warnings(report: DataReport, trial: Trial, steps: int) -> list[DataWarning]:
    """Return the warnings about a training of so many steps on this data."""
    training = trial.training
    if training is None:
        raise ValueError("only a training has a data report")
    return [
        *_few_steps(training, trial.learning_rate, steps),
        *_many_epochs(report, training, steps),
        *_few_held_out(report, training),
        *_unscored(report, training),
        *_lost(report, training),
        *_sources(report, training),
    ]


def _few_steps(training: Training, rate: float, steps: int) -> Iterator[DataWarning]:
    """Yield a warning if the steps are too few to move the adapter: each moves a weight by about the learning rate."""
    enough = math.ceil(ENOUGH_STEPS * AT_RATE / rate)
    if steps >= enough or training.max_steps is not None:
        return
    factor = enough / steps
    epochs, rows = math.ceil(training.epochs * factor), math.floor(training.rows_per_step / factor)
    digit = 10 ** math.floor(math.log10(rate * factor))
    new_rate = math.ceil(round(rate * factor / digit, 6)) * digit
    remedies = [
        *([f"train.epochs: {epochs}"] if epochs <= MAX_EPOCHS else []),
        *([f"train.learning_rate: {new_rate:g}"] if new_rate <= MAX_RATE else []),
        *([f"train.rows_per_step: {rows}"] if rows else []),
    ]
    yield DataWarning(
        "few_steps",
        {"steps": steps, "enough": enough},
        f"{count(steps, 'step')}, fewer than {enough} at learning rate {rate:g}: adapters learn little; "
        f"{' or '.join(remedies) or 'add data'}",
    )


def _many_epochs(report: DataReport, training: Training, steps: int) -> Iterator[DataWarning]:
    if training.epochs <= MAX_EPOCHS or training.patience:
        return
    in_time = ""
    if report.validation_examples:
        every = max(1, math.floor(steps / training.epochs))
        in_time = f", or train.evaluate_every: {every} with train.early_stopping_patience: 3 to stop in time"
    yield DataWarning(
        "many_epochs",
        {"epochs": training.epochs, "at_most": MAX_EPOCHS, "examples": report.examples},
        f"{training.epochs:g} epochs, more than {MAX_EPOCHS}: {count(report.examples, 'example')} may be learned by "
        f"heart; train.epochs: {MAX_EPOCHS}{in_time}",
    )


def _few_held_out(report: DataReport, training: Training) -> Iterator[DataWarning]:
    held_out = report.validation_examples
    if not 0 < held_out < MIN_HELD_OUT:
        return
    share = MIN_HELD_OUT / (report.examples + held_out)
    remedy = "name more in train.validation_file"
    if training.data.validation_file is None and share <= MAX_HELD_OUT_SHARE:
        remedy = f"train.validation_fraction: {math.ceil(100 * share) / 100:g}, or a train.validation_file"
    yield DataWarning(
        "few_held_out",
        {"held_out": held_out, "enough": MIN_HELD_OUT},
        f"{count(held_out, 'example')} held out, fewer than {MIN_HELD_OUT}: their loss shows little; {remedy}",
    )


def _unscored(report: DataReport, training: Training) -> Iterator[DataWarning]:
    """Yield a warning for a score of JSON if a shown answer is not JSON; the shown examples are a sample."""
    answers = ["".join(part.text for part in shown.parts if part.is_target).strip() for shown in report.shown]
    no_json = sum(not _is_json(answer) for answer in answers)
    if training.score == "json" and no_json:
        yield DataWarning(
            "score_without_json",
            {"no_json": no_json, "of": len(answers)},
            f"train.score: json, but {no_json} of {count(len(answers), 'answer')} looked at are no JSON and get no "
            "score, at most 0 may be; train.score: exact, contains or a Python file",
        )


def _is_json(answer: str) -> bool:
    """Check whether an answer is JSON, before the template's end token."""
    try:
        _, end = json.JSONDecoder().raw_decode(answer)
    except (ValueError, RecursionError):
        return False
    return answer[end:].strip()[:1] in ("", "<")


def _lost(report: DataReport, training: Training) -> Iterator[DataWarning]:
    """Yield warnings about rows and tokens that are left out, because of their length or for other reasons."""
    lost, other = report.lost, report.left_out
    all_lines = sum(file.lines for file in report.files)
    if lost is not None:
        rows, tokens = 100 * lost.rows / lost.all_rows, 100 * lost.tokens / lost.all_tokens
        if max(rows, tokens) > MAX_LOST_PERCENT:
            remedy = ""
            if lost.enough is not None:
                length = math.ceil(lost.enough / LENGTH_STEP) * LENGTH_STEP
                remedy = f"; train.max_seq_len: {length} loses at most 1 %"
            yield DataWarning(
                "long_examples",
                {"rows": lost.rows, "tokens_percent": tokens, "at_most_percent": MAX_LOST_PERCENT},
                f"{lost.rows:,} of {lost.all_rows:,} examples are longer than train.max_seq_len "
                f"{training.data.max_seq_len:,}: {tokens:.0f} % of the tokens are lost{remedy}",
            )
        other = max(0, other - lost.lines)
    if 100 * other > MAX_LOST_PERCENT * all_lines:
        yield DataWarning(
            "lines_left_out",
            {"lines": other, "of": all_lines, "at_most_percent": MAX_LOST_PERCENT},
            f"{other:,} of {all_lines:,} lines are left out, more than {MAX_LOST_PERCENT} %; `inv data.check` lists "
            "the reasons",
        )


def _sources(report: DataReport, training: Training) -> Iterator[DataWarning]:
    """Yield warnings about repeated lines, and about a file that gives nearly all tokens without having a weight."""
    all_lines = sum(file.lines for file in report.files)
    if 100 * report.duplicates > MAX_LOST_PERCENT * all_lines:
        yield DataWarning(
            "duplicates",
            {"lines": report.duplicates, "of": all_lines, "at_most_percent": MAX_LOST_PERCENT},
            f"{report.duplicates:,} of {all_lines:,} lines repeat another line, more than {MAX_LOST_PERCENT} %: they "
            "count more than others; remove them, or set train.data_weights if that is wanted",
        )
    tokens = {file.path: file.tokens for file in report.files if file.path != training.data.validation_file}
    largest = max(tokens, key=lambda path: tokens[path])
    percent = 100 * tokens[largest] / max(1, sum(tokens.values()))
    if len(tokens) > 1 and percent > MAX_SOURCE_PERCENT and set(training.data.weights) == {1.0}:
        yield DataWarning(
            "one_source",
            {"percent": percent, "at_most_percent": MAX_SOURCE_PERCENT},
            f"{largest} has {percent:.0f} % of the tokens, more than {MAX_SOURCE_PERCENT} %: the other files change "
            "little; train.data_weights sets how often a file's lines are repeated",
        )
