"""The sentences and titled numbers of a training: headline, score, losses, cost, predicted against actual."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from bench.records.adapter import FORM_LABELS, ServedForm
from bench.records.paths import ADAPTER_CHECK_FILE
from bench.records.score import ScoredRow, ScoreMeasure, TrainingScore
from bench.records.training import DataFinding, Evaluation, TrainingRecord
from bench.records.units import format_gib, format_mb
from reports import formatting
from reports.read import attempts
from reports.read.loaded_run import ReportError
from reports.training.training_facts import START, TrainingReport, adapter_evaluation, check_command, read_check

LABELS = {
    "exact": "exact answers",
    "contains": "answers with the expected text",
    "json": "equal fields",
}  # by method; of a score file its name

Line = tuple[str, str]  # title, text


def headline(training: TrainingReport) -> str:
    """Describe the training in one sentence: the change of its score, else of its held-out loss."""
    has_score = training.has_succeeded and training.record.score is not None and training.record.score.measures
    return (score_outcome(training.record) if has_score else None) or loss_and_cost(training) or outcome(training)


def notes(training: TrainingReport) -> list[str]:
    """Describe what the headline leaves out: loss and cost, the outcome, a score that is missing."""
    texts = [loss_and_cost(training), outcome(training)]
    if training.record.score is not None and not training.record.score.measures:
        texts.append(score_outcome(training.record))
    return [f"{text}." for text in dict.fromkeys(texts) if text is not None and text != headline(training)]


def loss_and_cost(training: TrainingReport) -> str | None:
    """Describe the change of the held-out loss, cost, time, prediction; None without a change or a result."""
    record, last = training.record, adapter_evaluation(training.record)
    first = record.evaluations[0] if record.evaluations else None
    if not training.has_succeeded or first is None or last is None or first.step == last.step:
        return None
    interval = f" {formatting.span(last.low, last.high, 2)}".rstrip()
    spans = training.attempts
    duration = formatting.duration(attempts.total_sec(spans, time.time()) if spans else training.steps_sec)
    paid = f"in {duration}" if training.usd is None else f"for {formatting.dollars(training.usd)} in {duration}"
    usd, seconds = training.forecast.get("usd"), training.forecast.get("total_sec")
    predicted = "" if seconds is None else f"; predicted {formatting.duration(seconds)}"
    if usd is not None:
        predicted = f"; predicted {formatting.dollars(usd)}"
    arrow = "\N{RIGHTWARDS ARROW}"
    return (
        f"Held-out loss {first.loss:.2f} {arrow} {last.loss:.2f}{interval} {paid} on {training.workers_text}{predicted}"
    )


def outcome(training: TrainingReport) -> str:
    """Describe how the training ended, and whether the held-out loss was shown to change."""
    record = training.record
    done = f"{record.steps_done:,} of {record.steps_planned:,} steps"
    if not training.has_succeeded:
        return f"The training did not succeed: {record.status} after {done}: {record.outcome.text or 'no reason given'}"
    last = adapter_evaluation(record)
    if last is None:
        return f"Trained: {done}; no data was held out, so the effect of the training is unknown"
    if last.change is None or last.change_low is None or last.change_high is None:
        few, none = "one example is too few for an interval", "no later loss was lower than the first"
        why = none if last.change is None else few
        return f"Trained: {done}; the held-out loss was not shown to change: {why}"
    low, high = sorted((abs(last.change_low), abs(last.change_high)))
    change = f"{abs(last.change):.4f} nats per token ({low:.4f} to {high:.4f})"
    if last.change_high < 0:
        return f"Trained: the held-out loss fell by {change}"
    if last.change_low > 0:
        return f"Trained, but the held-out loss rose by {change}"
    change = f"{last.change:+.4f} nats per token ({last.change_low:+.4f} to {last.change_high:+.4f})"
    return f"Trained, but the held-out loss was not shown to change: {change}"


def goodput(training: TrainingReport) -> str | None:
    """Say what share of the paid time became steps that count; None without a ledger."""
    total, steps = 3600.0 * training.worker_hours, training.steps_sec * training.record.world_size
    if total <= 0.0:
        return None
    share = f"{100.0 * min(1.0, steps / total):.0f} %"
    return f"Of {formatting.duration(total)} of worker time, {share} became steps that count."


def next_command(training: TrainingReport) -> tuple[str, str]:
    """Return the purpose of the command to continue with, and the command."""
    run_id = training.folder.name
    if not training.has_succeeded:
        return "To resume from the last checkpoint", f"inv train --resume={run_id}"
    merge = "To merge it into one model folder"
    if not training.record.evaluations:  # adapter.check needs held-out data
        return merge, f"inv adapter.merge --run={run_id} --force"
    with contextlib.suppress(ReportError):  # without a check there is no merge
        base = read_check(training).best_base(training.run.planned[0].trial.base_precision)
        if base is not None:
            return merge, f"inv adapter.merge --run={run_id} --base={base}"
    return "To measure the adapter in each form that can be served", check_command(training)


def score_label(score: TrainingScore, measure: ScoreMeasure) -> str:
    """Return the name of a measure; the first one's follows from the method."""
    if measure is not score.measures[0]:
        return measure.name
    return LABELS.get(score.method, f"score by {score.method.rpartition('/')[2]}")


def score_outcome(record: TrainingRecord) -> str | None:
    """Describe how the score changed, in one sentence; None without a score."""
    score = record.score
    if score is None:
        return None
    if score.failure is not None:
        return f"No answer was scored: {score.failure}"
    if not score.measures:
        return f"None of {formatting.count(len(score.places), 'answer')} has a score: {_unscored_reason(score)}"
    measure = score.measures[0]
    change = (
        f"{_share(measure.before)} to {_share(measure.after)} ({measure.change * 100:+.0f} points, "
        f"{measure.change_low * 100:+.0f} to {measure.change_high * 100:+.0f})"
    )
    verb = "was not shown to change"
    if measure.change_low > 0:
        verb = "rose"
    elif measure.change_high < 0:
        verb = "fell"
    of_rows = formatting.count(measure.rows, "held-out prompt")
    without = f"; {score.unscored_rows:,} more have no score" if score.unscored_rows else ""
    return f"The score ({score_label(score, measure)}) {verb}: {change} over {of_rows}{without}"


def _unscored_reason(score: TrainingScore) -> str:
    """Name the first row without a score, and why."""
    return next((f"row {row.row} ({row.place}): {fault_text(row)}" for row in score.unscored), "no reason given")


def fault_text(row: ScoredRow) -> str:
    """Describe why a row has no score: reason code, cause, detail."""
    if row.fault is None:
        return ""
    detail = f": {row.detail}" if row.detail else ""
    return f"{row.fault.value}: {row.fault.label}{detail}"


def score_table(score: TrainingScore) -> list[tuple[str, ...]]:
    """Return a row for each measure: name, before, after, difference in points, rows."""
    return [
        (
            score_label(score, measure),
            f"{_share(measure.before)} ({measure.before_low * 100:.0f} to {measure.before_high * 100:.0f})",
            f"{_share(measure.after)} ({measure.after_low * 100:.0f} to {measure.after_high * 100:.0f})",
            f"{measure.change * 100:+.1f} ({measure.change_low * 100:+.1f} to {measure.change_high * 100:+.1f})",
            f"{measure.rows:,}",
        )
        for measure in score.measures
    ]


def _share(share: float) -> str:
    return f"{share * 100:.0f} %"


def findings(training: TrainingReport) -> list[tuple[str, str, str]]:
    """Return findings about dropped, truncated or unusual data: description, count, first places."""
    data = training.record.data
    return [(each.what, f"{each.count:,}", _places(each)) for each in ([] if data is None else data.findings)]


def _places(finding: DataFinding) -> str:
    named = finding.places[:3]
    more = f" and {finding.count - len(named):,} more" if finding.count > len(named) else ""
    return ", ".join(named) + more


def lines(training: TrainingReport) -> list[Line]:
    """Return all numbers of the training except its score; what is unknown is left out."""
    return [(name, text) for name, text in _lines(training) if text is not None]


def _lines(training: TrainingReport) -> Iterator[tuple[str, str | None]]:
    record, trial = training.record, training.run.planned[0].trial
    yield "steps", f"{record.steps_done:,} of {record.steps_planned:,} ({record.reason or record.stop or 'stopped'})"
    yield "workers", f"{record.world_size}, on {training.device}"
    yield "base model", Path(trial.model).name
    yield "recipe", str(record.fingerprint.get("recipe") or trial.recipe)  # as built, after a fallback
    yield "precision of the base", trial.base_precision
    yield "adapters", f"rank {trial.lora_rank}, alpha {trial.lora_alpha:g}, on {', '.join(trial.lora_targets)}"
    schedule = "" if trial.training is None else f", {trial.training.schedule}"
    yield "learning rate", f"{trial.learning_rate:g}{schedule}; {trial.optimizer}"
    best = next((evaluation for evaluation in reversed(record.evaluations) if evaluation.is_best), None)
    ends = [*record.evaluations[:1], *([] if best is None else [best]), *record.evaluations[-1:]]
    for evaluation in {end.step: end for end in ends}.values():
        yield f"held-out loss, step {evaluation.step:,}", _loss(evaluation, best)
    yield "tokens trained on", f"{sum(record.steps.tokens):,}, {sum(record.steps.targets):,} of them targets"
    held = formatting.duration(3600.0 * training.worker_hours)
    waits = ", with waits for a restart" if training.attempts[1:] else ""
    yield "worker time", f"{held} over all workers{waits}" if training.attempts else None
    yield "peak GPU memory", None if record.peak_vram_bytes is None else format_gib(record.peak_vram_bytes, 2)
    price = training.forecast.get("price") or formatting.dollars(training.price)
    yield "cost", None if training.usd is None else f"{formatting.dollars(training.usd)} at {price}"
    yield "adapter", _adapter(record)


def _loss(evaluation: Evaluation, best: Evaluation | None) -> str:
    mark = ", the lowest" if evaluation is best else ""
    loss = f"{evaluation.loss:.4f} {formatting.span(evaluation.low, evaluation.high, 4)}".rstrip()
    return f"{loss} over {formatting.count(evaluation.rows, 'example')}{mark}"


def _adapter(record: TrainingRecord) -> str | None:
    if record.adapter_sha256 is None:
        return None
    size = format_mb(sum(record.adapter_files.values()))
    return f"step {record.adapter_step:,}, {size}, sha256 {record.adapter_sha256}"


def predicted_and_actual(training: TrainingReport) -> list[tuple[str, str, str]]:
    """Return rows of name, predicted value (- for none), actual value; without parts that took no time."""
    record, plan, sec, now = training.record, training.forecast, training.steps_sec, time.time()
    total = attempts.total_sec(training.attempts, now) if training.attempts else None
    parts = {
        START: 0.0,
        f"loading, of {START}": 0.0 if record.time is None else record.time.loading_sec,
        f"waiting for a restart, of {START}": attempts.wait_sec(training.attempts, now),
    } | training.parts_sec
    usd_per_sec = None if training.price is None else training.price * record.world_size / 3600.0

    def part(seconds: float) -> str:
        dollars = "" if usd_per_sec is None else f", {formatting.dollars(seconds * usd_per_sec)}"
        return f"{formatting.duration(seconds)}{dollars}"

    rows = (
        ("steps", plan.get("steps"), record.steps_done, "{:,}".format),
        ("time of the steps", plan.get("seconds"), sec, part),
        *((name, plan.get("parts_sec", {}).get(name), spent or None, part) for name, spent in parts.items()),
        ("whole time", plan.get("total_sec"), total, formatting.duration),
        ("dollars", plan.get("usd"), training.usd, formatting.dollars),
        ("peak GPU memory", plan.get("peak_bytes"), record.peak_vram_bytes, lambda count: format_gib(count, 2)),
        ("communication", None, record.communication_measured_percent, "{:.1f} %".format),
    )
    return [
        (name, "-" if predicted is None else show(predicted), show(actual))
        for name, predicted, actual, show in rows
        if actual is not None
    ]


def check_lines(training: TrainingReport) -> list[Line]:
    """Return the held-out loss of each checked form, or why it is missing; [] without an adapter or held-out data."""
    if training.record.adapter_sha256 is None or not training.record.evaluations:
        return []
    if not (training.folder / ADAPTER_CHECK_FILE).exists():
        return [("adapter's check", f"not done; run `{check_command(training)}`")]
    try:
        check = read_check(training)
    except ReportError as error:
        return [("adapter's check", f"not usable: {error}")]
    return [(f"check, {FORM_LABELS.get(form.name, form.name)}", _form_text(form)) for form in check.forms]


def _form_text(form: ServedForm) -> str:
    text = f"{form.loss:.4f} {formatting.span(form.low, form.high, 4)}".rstrip()
    if form.change is not None:
        low, high = form.change_low, form.change_high
        ends = "" if low is None or high is None else f" ({low:+.4f} to {high:+.4f})"
        text += f", {form.change:+.4f}{ends} compared with the trained form"
    return text + (f"; {form.unended} of {len(form.answers)} answers did not end" if form.unended else "")
