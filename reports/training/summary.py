"""Numbers of a training as titled lines: losses, time, dollars, restarts, predicted against actual."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from bench.records.adapter import FORM_LABELS, AdapterCheck, ServedForm
from bench.records.checksummed import ResultError
from bench.records.paths import ADAPTER_CHECK_FILE, LEDGER_FILE, RUN_FILE, TRAINING_FILE, TRIALS_FOLDER
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from bench.records.training import DataFinding, Evaluation, TrainingRecord
from bench.records.units import format_gib, format_mb
from reports import formatting
from reports.read import attempts, validation
from reports.read.attempts import AttemptSpan
from reports.read.run import Rejected, ReportError
from reports.training import score

SummaryRow = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """A loaded training: its folder, plan, record, attempts, forecast. `price` is US dollars per worker and hour.

    `rejected` are files that were read in part.
    """

    folder: Path
    run: RunRecord
    record: TrainingRecord
    attempts: Sequence[AttemptSpan]
    rejected: Sequence[Rejected]
    forecast: dict[str, Any]
    price: float | None

    @property
    def has_succeeded(self) -> bool:
        return self.record.outcome.status is TrialStatus.SUCCEEDED

    @property
    def device(self) -> str:
        return str(self.run.provenance.get("inputs", {}).get("device") or "unknown device")

    @property
    def worker_hours(self) -> float:
        """The hours that all workers were held, waits for a restart included, from the ledger."""
        return attempts.held_sec(self.attempts, time.time()) / 3600.0

    @property
    def tokens(self) -> list[int]:
        """The useful tokens trained on after each step."""
        return list(accumulate(self.record.steps.tokens))

    @property
    def hours(self) -> list[float]:
        """The hours of steps after each step, without pauses."""
        return [seconds / 3600.0 for seconds in accumulate(self.record.steps.step_time_sec)]


def read(run_folder: Path) -> TrainingReport:
    """Load a training. Raises ReportError if it was not collected or is invalid."""
    try:
        run = RunRecord.read(run_folder / RUN_FILE)
        if len(run.planned) != 1:
            planned = formatting.count(len(run.planned), "trial")
            raise ValueError(f"{run_folder / RUN_FILE}: plans {planned}; expected 1 for a training")
        trial_id = run.planned[0].trial_id
        path = run_folder / TRIALS_FOLDER / trial_id / TRAINING_FILE
        record = TrainingRecord.read(path)
        if (record.run_id, record.trial_id) != (run.run_id, trial_id):
            raise ValueError(f"{path}: belongs to {record.trial_id!r} of run {record.run_id!r}")
        fault = validation.training_fault(record) or (None if record.score is None else score.fault(record.score))
        if fault is not None:
            raise ValueError(f"{path}: {fault}")
        forecast = _read_forecast(run)
        spans = attempts.read(run_folder, trial_id)
        ledger = attempts.read_starts(run_folder)
    except (ResultError, ValueError) as error:
        remedy = f"run `inv collect --run={run_folder.name}` to fetch its files"
        raise ReportError.from_error(error, remedy=remedy) from error
    except OSError as error:
        raise ReportError(f"{run_folder / LEDGER_FILE}: cannot be read: {error.strerror}") from error
    fault = ledger.fault or attempts.unlisted_fault(ledger.starts, [(trial_id, record.attempt)])
    return TrainingReport(
        folder=run_folder,
        run=run,
        record=record,
        attempts=spans,
        rejected=() if fault is None else (Rejected(file=LEDGER_FILE, reason=fault),),
        forecast=forecast,
        price=forecast.get("usd_per_gpu_hour"),
    )


def _read_forecast(run: RunRecord) -> dict[str, Any]:
    """Return the forecast from the plan. Raises ValueError if it is impossible."""
    inputs = run.provenance.get("inputs", {})
    forecast = inputs.get("forecast", {}) if isinstance(inputs, dict) else None
    fault = validation.forecast_fault(forecast) if isinstance(forecast, dict) else "expected an object"
    if fault is not None:
        raise ValueError(f"{RUN_FILE}: forecast: {fault}")
    return dict(forecast or {})


def headline(training: TrainingReport) -> str:
    """Describe the training in one sentence: the change of its score, else of its held-out loss."""
    has_score = training.has_succeeded and training.record.score is not None and training.record.score.measures
    return (score.outcome(training.record) if has_score else None) or loss_and_cost(training) or outcome(training)


def loss_and_cost(training: TrainingReport) -> str | None:
    """Describe the change of the held-out loss, cost, time, prediction; None without a change or a result."""
    record, last = training.record, adapter_evaluation(training.record)
    first = record.evaluations[0] if record.evaluations else None
    if not training.has_succeeded or first is None or last is None or first.step == last.step:
        return None
    interval = f" {formatting.span(last.low, last.high, 2)}".rstrip()
    money = None if training.price is None else formatting.dollars(training.worker_hours * training.price)
    spans = training.attempts
    duration = _time(attempts.total_sec(spans, time.time()) if spans else sum(record.steps.step_time_sec))
    paid = f"for {money} in {duration}" if money else f"in {duration}"
    size, device = record.world_size, training.device
    workers = formatting.count(size, "CPU worker") if device == "CPU" else f"{size} {device}"
    return (
        f"Held-out loss {first.loss:.2f} \N{RIGHTWARDS ARROW} {last.loss:.2f}{interval} {paid} on "
        f"{workers}{_predicted(training)}"
    )


def notes(training: TrainingReport) -> list[str]:
    """Describe what the headline leaves out: loss and cost, the outcome, a score that is missing."""
    texts = [loss_and_cost(training), outcome(training)]
    if training.record.score is not None and not training.record.score.measures:
        texts.append(score.outcome(training.record))
    return [text for text in dict.fromkeys(texts) if text is not None and text != headline(training)]


def _predicted(training: TrainingReport) -> str:
    """Describe the predicted cost of the steps, else their predicted time; "" without a prediction."""
    usd, seconds = training.forecast.get("usd"), training.forecast.get("seconds")
    if usd is not None:
        return f"; predicted {formatting.dollars(usd)} for the steps"
    return "" if seconds is None else f"; predicted {_time(seconds)} for the steps"


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
        why = (
            "one example is too few for an interval"
            if last.change is not None
            else "no later loss was lower than the first"
        )
        return f"Trained: {done}; the held-out loss was not shown to change: {why}"
    low, high = sorted((abs(last.change_low), abs(last.change_high)))
    change = f"{abs(last.change):.4f} nats per token ({low:.4f} to {high:.4f})"
    if last.change_high < 0:
        return f"Trained: the held-out loss fell by {change}"
    if last.change_low > 0:
        return f"Trained, but the held-out loss rose by {change}"
    change = f"{last.change:+.4f} nats per token ({last.change_low:+.4f} to {last.change_high:+.4f})"
    return f"Trained, but the held-out loss was not shown to change: {change}"


def tiles(training: TrainingReport) -> list[tuple[str, str, str]]:
    """Return the main numbers: name, value, detail."""
    record, last = training.record, adapter_evaluation(training.record)
    rows = []
    if record.score is not None and record.score.measures:
        measure = record.score.measures[0]
        before = f"{measure.before * 100:.0f} % before; {measure.after_low * 100:.0f} to {measure.after_high * 100:.0f}"
        rows.append((score.label(record.score, measure), f"{measure.after * 100:.0f} %", before))
    if last is not None:
        interval = "" if last.low is None or last.high is None else f"{last.low:.4f} to {last.high:.4f}"
        rows.append(("held-out loss", f"{last.loss:.4f}", interval))
    if training.price is not None:
        predicted = formatting.dollars(training.forecast.get("usd"))
        rows.append(
            ("cost", formatting.dollars(training.worker_hours * training.price), f"predicted {predicted} for the steps")
        )
    seconds = sum(record.steps.step_time_sec)
    predicted_sec = training.forecast.get("seconds")
    predicted = "unknown" if predicted_sec is None else _time(predicted_sec)
    rows.append(("time of the steps", _time(seconds), f"predicted {predicted}"))
    if seconds > 0:
        rate = sum(record.steps.tokens) / seconds
        rows.append(
            ("useful tokens per second", formatting.number(rate), f"of {formatting.count(record.world_size, 'worker')}")
        )
    return rows


def findings(training: TrainingReport) -> list[tuple[str, str, str]]:
    """Return findings about dropped, truncated or unusual data: description, count, first places."""
    data = training.record.data
    data_findings = [] if data is None else data.findings
    return [(finding.what, f"{finding.count:,}", _finding_places(finding)) for finding in data_findings]


def _finding_places(finding: DataFinding) -> str:
    """Return the first three places and the number of the others."""
    named = finding.places[:3]
    more = f" and {finding.count - len(named):,} more" if finding.count > len(named) else ""
    return ", ".join(named) + more


def lines(training: TrainingReport) -> list[SummaryRow]:
    """Return all numbers of the training as pairs of title and text."""
    record, restarts = training.record, training.attempts[1:]
    best = next((evaluation for evaluation in reversed(record.evaluations) if evaluation.is_best), None)
    return [
        ("steps", f"{record.steps_done:,} of {record.steps_planned:,} ({record.reason or record.stop or 'stopped'})"),
        ("workers", f"{record.world_size}, on {training.device}"),
        *_configuration(training),
        *score.lines(record),
        *(
            (f"held-out loss, step {evaluation.step:,}", _loss(evaluation, best))
            for evaluation in _notable_evaluations(record.evaluations, best)
        ),
        ("tokens trained on", f"{sum(record.steps.tokens):,}, {sum(record.steps.targets):,} of them targets"),
        ("time of the steps", _hours(sum(record.steps.step_time_sec))),
        ("worker time", f"{formatting.number(training.worker_hours)} hours over all workers, with waits for a restart"),
        ("cost", _cost(training)),
        ("restarts", _restarts(restarts)),
        ("adapter", _adapter(record)),
    ]


def _configuration(training: TrainingReport) -> list[SummaryRow]:
    """Return the configuration: base model, recipe as built, precision, adapters, learning rate."""
    trial = training.run.planned[0].trial
    schedule = "" if trial.training is None else f", {trial.training.schedule}"
    return [
        ("base model", Path(trial.model).name),
        ("recipe", str(training.record.fingerprint.get("recipe") or trial.recipe)),
        ("precision of the base", trial.base_precision),
        ("adapters", f"rank {trial.lora_rank}, alpha {trial.lora_alpha:g}, on {', '.join(trial.lora_targets)}"),
        ("learning rate", f"{trial.learning_rate:g}{schedule}; {trial.optimizer}"),
    ]


def predicted_and_actual(training: TrainingReport) -> list[tuple[str, str, str]]:
    """Return rows of name, predicted value, actual value."""
    record, plan = training.record, training.forecast
    steps_sec = sum(record.steps.step_time_sec)
    seconds, usd, peak = plan.get("seconds"), plan.get("usd"), plan.get("peak_bytes")
    communication = plan.get("communication_percent") or record.communication_predicted_percent
    steps_usd = None if training.price is None else steps_sec / 3600.0 * record.world_size * training.price
    return [
        ("steps", formatting.number(plan.get("steps"), 0), f"{record.steps_done:,}"),
        ("time of the steps", "unknown" if seconds is None else _hours(seconds), _hours(steps_sec)),
        ("dollars for the steps", formatting.dollars(usd), formatting.dollars(steps_usd)),
        ("peak GPU memory", _gib(peak), _gib(record.peak_vram_bytes)),
        ("communication", _percent(communication), _percent(record.communication_measured_percent)),
    ]


def _notable_evaluations(evaluations: Sequence[Evaluation], best: Evaluation | None) -> list[Evaluation]:
    """Select the first, the best and the last."""
    ends = [*evaluations[:1], *([] if best is None else [best]), *evaluations[-1:]]
    return list({end.step: end for end in ends}.values())


def adapter_evaluation(record: TrainingRecord) -> Evaluation | None:
    """Return the held-out loss of the fetched adapter, else the last one."""
    matches = [evaluation for evaluation in record.evaluations if evaluation.step == record.adapter_step]
    return next(iter(matches or record.evaluations[-1:]), None)


def _loss(evaluation: Evaluation, best: Evaluation | None) -> str:
    mark = ""
    if evaluation.score is not None:
        mark = f"; score {evaluation.score * 100:.0f} %{', the highest' if evaluation is best else ''}"
    elif evaluation is best:
        mark = ", the lowest"
    interval = (
        "" if evaluation.low is None or evaluation.high is None else f" ({evaluation.low:.4f} to {evaluation.high:.4f})"
    )
    return f"{evaluation.loss:.4f}{interval} over {formatting.count(evaluation.rows, 'example')}{mark}"


def _cost(training: TrainingReport) -> str:
    if training.price is None:
        return "unknown: these workers have no known price"
    price = training.forecast.get("price") or formatting.dollars(training.price)
    return f"{formatting.dollars(training.worker_hours * training.price)} at {price}"


def _restarts(restarts: Sequence[AttemptSpan]) -> str:
    if not restarts:
        return "none"
    known = [restart.lost_sec for restart in restarts if restart.lost_sec is not None]
    usd = [restart.usd for restart in restarts if restart.usd is not None]
    cost = f", {formatting.number(sum(known))} s since their checkpoints" if known else ""
    paid = f", {formatting.dollars(sum(usd))}" if usd else ""
    unknown = len(restarts) - len(known)
    return f"{len(restarts)}{cost}{paid}{f'; the cost of {unknown} is unknown' if unknown else ''}"


def _adapter(record: TrainingRecord) -> str:
    if record.adapter_sha256 is None:
        return "none"
    size = format_mb(sum(record.adapter_files.values()))
    return f"step {record.adapter_step:,}, {size}, sha256 {record.adapter_sha256}"


def _hours(seconds: float) -> str:
    return f"{formatting.number(seconds / 3600)} hours" if seconds >= 360 else f"{formatting.number(seconds)} s"


def _time(seconds: float) -> str:
    """Format `26 min`, `3.2 hours`, `48 s`, `0.4 s`."""
    if seconds < 100.0:
        return f"{seconds:.1f} s" if seconds < 10.0 else f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 6000.0 else f"{seconds / 3600.0:.1f} hours"


def _gib(count: int | None) -> str:
    return "unknown" if count is None else format_gib(count, 2)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} %"


def read_check(training: TrainingReport) -> AdapterCheck:
    """Load the check of the training's adapter. Raises ReportError if it is missing, another adapter's or invalid."""
    path = training.folder / ADAPTER_CHECK_FILE
    if not training.record.evaluations:
        raise ReportError(f"run {training.folder.name}: no data was held out, so its loss is unknown")
    remedy = f"run `{check_command(training)}`"
    try:
        check = AdapterCheck.read(path)
    except ResultError as error:
        raise ReportError.from_error(error, remedy=remedy) from error
    if check.adapter_sha256 != training.record.adapter_sha256:
        raise ReportError(f"{path}: belongs to another adapter than the run's", remedy=remedy)
    if (fault := _check_fault(check)) is not None:
        raise ReportError(f"{path}: {fault}", remedy=remedy)
    return check


def check_rows(training: TrainingReport) -> list[SummaryRow]:
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


def check_command(training: TrainingReport) -> str:
    return f"inv adapter.check --run={training.folder.name}"


def _form_text(form: ServedForm) -> str:
    interval = "" if form.low is None or form.high is None else f" ({form.low:.4f} to {form.high:.4f})"
    change = ""
    if form.change is not None:
        ends = (
            ""
            if form.change_low is None or form.change_high is None
            else f" ({form.change_low:+.4f} to {form.change_high:+.4f})"
        )
        change = f", {form.change:+.4f}{ends} compared with the trained form"
    if form.score is not None:
        change += (
            f"; score {form.score * 100:.0f} % over {formatting.count(len(form.answers) - form.unscored, 'answer')}"
        )
    unended = f"; {form.unended} of {len(form.answers)} answers did not end" if form.unended else ""
    return f"{form.loss:.4f}{interval}{change}{unended}"


def _check_fault(check: AdapterCheck) -> str | None:
    lengths: Sequence[int] = (len(check.examples), len(set(check.examples)), len(check.losses), len(check.targets))
    if len(set(lengths)) != 1 or min(check.targets, default=1) < 1 or not check.forms:
        return "its losses, targets and examples do not match"
    return validation.numbers_fault(check)
