"""Warnings before a training: what it shows or learns little of, by code, with the numbers that would change that."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

from bench.records import Trial
from bench.records.training import DataReport, Training
from tasks.fleet.trial_spec import training_of

ENOUGH_STEPS, AT_RATE = 30, 2e-4  # at a higher learning rate fewer steps move an adapter as far
MAX_RATE = 2e-3  # the highest learning rate that is proposed
MAX_EPOCHS, MIN_HELD_OUT = 10, 20
MAX_HELD_OUT_SHARE = 0.5  # the largest train.validation_fraction
MAX_LOST_PERCENT = 5  # lost rows or tokens, or repeated lines
MAX_SOURCE_PERCENT = 90  # tokens from one of several files
LENGTH_STEP = 64  # a proposed length is a multiple of it
# By code: the sentence, with the warning's values in it.
TEXTS = {
    "few_steps": "steps: {steps:,}, fewer than {enough:,} at learning rate {rate:g}: adapters learn little; {remedy}",
    "many_epochs": "{epochs:g} epochs, more than {at_most}: {examples:,} examples may be learned by heart; "
    "train.epochs: {at_most}{in_time}",
    "few_held_out": "examples held out: {held_out}, fewer than {enough}: their loss shows little; {remedy}",
    "score_without_json": "train.score: json, but of {answers} answers looked at {no_json} are no JSON and get no "
    "score, at most 0 may be; train.score: exact, contains or a Python file",
    "long_examples": "{rows:,} of {of:,} examples are longer than train.max_seq_len {length:,}: {tokens_percent:.0f} % "
    "of the tokens are lost, more than {at_most_percent} % of either{remedy}",
    "lines_left_out": "{lines:,} of {of:,} lines are left out, more than {at_most_percent} %; `inv data.check` lists "
    "the reasons",
    "duplicates": "{lines:,} of {of:,} lines repeat another line, more than {at_most_percent} %: they count more than "
    "others; remove them unless that is wanted",
    "one_source": "{file} has {percent:.0f} % of the tokens, more than {at_most_percent} %: the other files change "
    "little; repeat their lines if these are to count more",
}


@dataclass(frozen=True)
class DataWarning:
    """A warning: its code, and the values that it is about."""

    code: str
    values: dict[str, float | str]

    @property
    def text(self) -> str:
        """The sentence, which names a setting and its value."""
        return TEXTS[self.code].format_map(self.values)


def _warn(code: str, **values: float | str) -> DataWarning:
    return DataWarning(code, values)


def find_warnings(report: DataReport, trial: Trial, steps: int) -> list[DataWarning]:
    """Return the warnings about a training of so many steps on this data."""
    training = training_of(trial)
    return [*_amount(report, training, trial.learning_rate, steps), *_content(report, training)]


def _amount(report: DataReport, training: Training, rate: float, steps: int) -> Iterator[DataWarning]:
    """Yield warnings about too few steps, too many epochs, and too few held-out examples.

    A step moves each weight of an adapter by about the learning rate, so it says how many steps are few.
    """
    enough, held_out, remedy = math.ceil(ENOUGH_STEPS * AT_RATE / rate), report.validation_examples, ""
    if steps < enough and training.max_steps is None:
        factor = enough / steps
        digit = 10 ** math.floor(math.log10(rate * factor))
        epochs, rows = math.ceil(training.epochs * factor), math.floor(training.rows_per_step / factor)
        new_rate = math.ceil(round(rate * factor / digit, 6)) * digit
        remedies = (
            f"train.epochs: {epochs}" if epochs <= MAX_EPOCHS else "",
            f"train.learning_rate: {new_rate:g}" if new_rate <= MAX_RATE else "",
            f"train.rows_per_step: {rows}" if rows else "",
        )
        remedy = " or ".join(filter(None, remedies)) or "add data"
        yield _warn("few_steps", steps=steps, enough=enough, rate=rate, remedy=remedy)
    if training.epochs > MAX_EPOCHS and not training.patience:
        every = max(1, math.floor(steps / training.epochs))
        stop = f", or train.evaluate_every: {every} with train.early_stopping_patience: 3 to stop in time"
        in_time = stop if held_out else ""
        examples = report.examples
        yield _warn("many_epochs", epochs=training.epochs, at_most=MAX_EPOCHS, examples=examples, in_time=in_time)
    if 0 < held_out < MIN_HELD_OUT:
        share = MIN_HELD_OUT / (report.examples + held_out)
        remedy = "name more in train.validation_file"
        if training.data.validation_file is None and share <= MAX_HELD_OUT_SHARE:
            remedy = f"train.validation_fraction: {math.ceil(100 * share) / 100:g}, or a train.validation_file"
        yield _warn("few_held_out", held_out=held_out, enough=MIN_HELD_OUT, remedy=remedy)


def _content(report: DataReport, training: Training) -> Iterator[DataWarning]:
    """Yield warnings about answers without a score, lost and repeated lines, and a file with nearly all tokens."""
    answers = ["".join(part.text for part in shown.parts if part.is_target).strip() for shown in report.shown]
    no_json = sum(not _is_json(answer) for answer in answers)
    if training.score == "json" and no_json:  # the shown examples are a sample
        yield _warn("score_without_json", no_json=no_json, answers=len(answers))
    lost, other, all_lines = report.lost, report.left_out, sum(file.lines for file in report.files)
    limit = {"at_most_percent": MAX_LOST_PERCENT}
    if lost is not None:
        rows, tokens = 100 * lost.rows / lost.all_rows, 100 * lost.tokens / lost.all_tokens
        if max(rows, tokens) > MAX_LOST_PERCENT:
            values = {"rows": lost.rows, "of": lost.all_rows, "tokens_percent": tokens, **limit}
            enough = math.ceil((lost.enough or 0) / LENGTH_STEP) * LENGTH_STEP
            remedy = f"; train.max_seq_len: {enough} loses at most 1 %" if enough else ""
            yield _warn("long_examples", length=training.data.max_seq_len, remedy=remedy, **values)
        other = max(0, other - lost.lines)
    for code, lines in (("lines_left_out", other), ("duplicates", report.duplicates)):
        if 100 * lines > MAX_LOST_PERCENT * all_lines:
            yield _warn(code, lines=lines, of=all_lines, **limit)
    sizes = {file.path: file.tokens for file in report.files if file.path != training.data.validation_file}
    largest = max(sizes, key=lambda path: sizes[path])
    percent = 100 * sizes[largest] / max(1, sum(sizes.values()))
    if len(sizes) > 1 and percent > MAX_SOURCE_PERCENT:
        yield _warn("one_source", file=largest, percent=percent, at_most_percent=MAX_SOURCE_PERCENT)


def _is_json(answer: str) -> bool:
    """Check whether an answer is JSON, before the template's end token."""
    try:
        _, end = json.JSONDecoder().raw_decode(answer)
    except (ValueError, RecursionError):
        return False
    return answer[end:].strip()[:1] in ("", "<")
