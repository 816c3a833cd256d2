"""What a report says of a training, as titled lines: losses, time, dollars, restarts, predicted against actual."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from bench.records.checksummed import ResultError
from bench.records.paths import LEDGER_FILE, RUN_FILE, TRAINING_FILE, TRIALS_FOLDER
from bench.records.result import TrialStatus
from bench.records.run import RunRecord
from bench.records.training import Evaluation, TrainingRecord
from bench.records.training_data import DataFinding
from reports import formatting
from reports.read import attempts, validation
from reports.read.attempts import AttemptSpan
from reports.read.run import ReportError

SummaryRow = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """A training as read: its folder, plan, record, attempts. `price` is US dollars for one worker's hour."""

    folder: Path
    run: RunRecord
    record: TrainingRecord
    held: Sequence[AttemptSpan]
    foreseen: dict[str, Any]
    price: float | None

    @property
    def has_succeeded(self) -> bool:
        return self.record.status == TrialStatus.SUCCEEDED.value

    @property
    def device(self) -> str:
        return str(self.run.provenance.get("inputs", {}).get("device") or "a device that is not known")

    @property
    def worker_hours(self) -> float:
        """Hours for which workers were held, by the ledger."""
        return attempts.worker_sec(self.held, time.time()) / 3600.0

    @property
    def tokens(self) -> list[int]:
        """Useful tokens trained on after each step."""
        return list(accumulate(self.record.steps.tokens))

    @property
    def hours(self) -> list[float]:
        """Hours of steps after each step, pauses left out."""
        return [seconds / 3600.0 for seconds in accumulate(self.record.steps.step_time_sec)]


def read(run_folder: Path) -> TrainingReport:
    """Raises ReportError: nothing was collected, or it cannot be trusted."""
    try:
        run = RunRecord.read(run_folder / RUN_FILE)
        if len(run.planned) != 1:
            planned = formatting.count(len(run.planned), "trial")
            raise ValueError(f"{run_folder / RUN_FILE}: plans {planned}; a training is one")
        trial_id = run.planned[0].trial_id
        path = run_folder / TRIALS_FOLDER / trial_id / TRAINING_FILE
        record = TrainingRecord.read(path)
        if (record.run_id, record.trial_id) != (run.run_id, trial_id):
            raise ValueError(f"{path}: belongs to {record.trial_id!r} of run {record.run_id!r}")
        if (fault := validation.training_fault(record)) is not None:
            raise ValueError(f"{path}: {fault}")
        foreseen = _foreseen(run)
        held = attempts.read(run_folder, trial_id)
    except (ResultError, ValueError) as error:
        raise ReportError(f"{error}; `inv collect --run={run_folder.name}` brings what the training left") from None
    except OSError as error:
        raise ReportError(f"{run_folder / LEDGER_FILE}: cannot be read: {error.strerror}") from None
    return TrainingReport(
        folder=run_folder, run=run, record=record, held=held, foreseen=foreseen, price=foreseen.get("usd_per_gpu_hour")
    )


def _foreseen(run: RunRecord) -> dict[str, Any]:
    """What was foreseen of the training. Raises ValueError where that cannot be true."""
    inputs = run.provenance.get("inputs", {})
    foreseen = inputs.get("foreseen", {}) if isinstance(inputs, dict) else None
    fault = validation.foreseen_fault(foreseen) if isinstance(foreseen, dict) else "it is no object"
    if fault is not None:
        raise ValueError(f"{RUN_FILE}: what was foreseen: {fault}")
    return dict(foreseen or {})


def headline(told: TrainingReport) -> str:
    """The training in one sentence: how far the held-out loss came, for what, and what was predicted."""
    record, last = told.record, of_adapter(told.record)
    first = record.evaluations[0] if record.evaluations else None
    if not told.has_succeeded or first is None or last is None or first.step == last.step:
        return outcome(told)
    between = f" {formatting.span(last.low, last.high, 2)}".rstrip()
    money = None if told.price is None else dollars(told.worker_hours * told.price)
    taken = _time(sum(record.steps.step_time_sec) if not told.held else attempts.took_sec(told.held, time.time()))
    paid = f"for {money} in {taken}" if money else f"in {taken}"
    return (
        f"Held-out loss {first.loss:.2f} \N{RIGHTWARDS ARROW} {last.loss:.2f}{between} {paid} on "
        f"{record.world_size} {told.device}{_predicted(told)}"
    )


def _predicted(told: TrainingReport) -> str:
    """What the steps were predicted to cost, or else to take; empty where nothing was predicted."""
    usd, seconds = told.foreseen.get("usd"), told.foreseen.get("seconds")
    if usd is not None:
        return f"; predicted {dollars(usd)} for the steps"
    return "" if seconds is None else f"; predicted {_time(seconds)} for the steps"


def outcome(told: TrainingReport) -> str:
    """How the training ended, and whether a change of the held-out loss is shown."""
    record = told.record
    done = f"{record.steps_done:,} of {record.steps_planned:,} steps"
    if not told.has_succeeded:
        return f"The training did not end well: {record.status} after {done}: {record.reason or 'no reason given'}"
    last = of_adapter(record)
    if last is None:
        return f"Trained: {done}; no data was held out, so nothing is known of what it learned"
    if last.change is None or last.change_low is None or last.change_high is None:
        why = "one example is too few for an interval" if last.change is not None else "none was lower than the first"
        return f"Trained: {done}; no change of the held-out loss is shown: {why}"
    low, high = sorted((abs(last.change_low), abs(last.change_high)))
    change = f"{abs(last.change):.4f} nats a token ({low:.4f} to {high:.4f})"
    if last.change_high < 0:
        return f"Trained: the held-out loss fell by {change}"
    if last.change_low > 0:
        return f"Trained, and it got worse: the held-out loss rose by {change}"
    change = f"{last.change:+.4f} nats a token ({last.change_low:+.4f} to {last.change_high:+.4f})"
    return f"Trained, and no change of the held-out loss is shown: {change}"


def tiles(told: TrainingReport) -> list[tuple[str, str, str]]:
    """The largest numbers: name, value, what to read with it."""
    record, last = told.record, of_adapter(told.record)
    found = []
    if last is not None:
        between = "" if last.low is None or last.high is None else f"{last.low:.4f} to {last.high:.4f}"
        found.append(("held-out loss", f"{last.loss:.4f}", between))
    if told.price is not None:
        planned = dollars(told.foreseen.get("usd"))
        found.append(("cost", dollars(told.worker_hours * told.price), f"predicted {planned} for the steps"))
    seconds = sum(record.steps.step_time_sec)
    foreseen = told.foreseen.get("seconds")
    planned = "unknown" if foreseen is None else _time(foreseen)
    found.append(("time of the steps", _time(seconds), f"predicted {planned}"))
    if seconds > 0:
        rate = sum(record.steps.tokens) / seconds
        found.append(
            ("useful tokens a second", formatting.number(rate), f"of {formatting.count(record.world_size, 'worker')}")
        )
    return found


def findings(told: TrainingReport) -> list[tuple[str, str, str]]:
    """What was dropped, cut or unusual in the data: what, how often, where first."""
    data = told.record.data
    return [] if data is None else [(finding.what, f"{finding.count:,}", _places(finding)) for finding in data.findings]


def _places(one: DataFinding) -> str:
    """The first three of all; a finding names no more than the first few."""
    named = one.places[:3]
    more = f" and {one.count - len(named):,} more" if one.count > len(named) else ""
    return ", ".join(named) + more


def lines(told: TrainingReport) -> list[SummaryRow]:
    record, held = told.record, told.held
    restarts = held[1:]
    lowest = next((evaluation for evaluation in reversed(record.evaluations) if evaluation.is_best), None)
    return [
        ("steps", f"{record.steps_done:,} of {record.steps_planned:,} ({record.reason or record.stop or 'stopped'})"),
        ("workers", f"{record.world_size}, on {told.device}"),
        *((f"held-out loss, step {one.step:,}", _loss(one, lowest)) for one in _shown(record.evaluations, lowest)),
        ("tokens trained on", f"{sum(record.steps.tokens):,}, {sum(record.steps.targets):,} of them targets"),
        ("time of the steps", _hours(sum(record.steps.step_time_sec))),
        ("workers were held for", f"{formatting.number(told.worker_hours)} hours, all workers and attempts together"),
        ("cost", _cost(told)),
        ("restarts", _restarts(restarts)),
        *(
            (f"changed after step {restart.from_step:,}", "; ".join(restart.changed))
            for restart in record.restarts
            if restart.changed
        ),
        ("adapter", _adapter(record)),
    ]


def compared(told: TrainingReport) -> list[tuple[str, str, str]]:
    """Predicted beside actual: name, predicted, actual."""
    record, plan = told.record, told.foreseen
    taken = sum(record.steps.step_time_sec)
    seconds, usd, peak = plan.get("seconds"), plan.get("usd"), plan.get("peak_bytes")
    communication = plan.get("communication_percent") or record.communication_predicted_percent
    steps_usd = None if told.price is None else taken / 3600.0 * record.world_size * told.price
    return [
        ("steps", formatting.number(plan.get("steps"), 0), f"{record.steps_done:,}"),
        ("time of the steps", "unknown" if seconds is None else _hours(seconds), _hours(taken)),
        ("dollars for the steps", dollars(usd), dollars(steps_usd)),
        ("peak GPU memory", _gib(peak), _gib(record.peak_vram_bytes)),
        ("communication", _percent(communication), _percent(record.communication_measured_percent)),
    ]


def _shown(evaluations: Sequence[Evaluation], lowest: Evaluation | None) -> list[Evaluation]:
    """The first, the lowest and the last."""
    ends = [*evaluations[:1], *([] if lowest is None else [lowest]), *evaluations[-1:]]
    return list({end.step: end for end in ends}.values())


def of_adapter(record: TrainingRecord) -> Evaluation | None:
    """The held-out loss of the adapter that came home; else the last."""
    at = [evaluation for evaluation in record.evaluations if evaluation.step == record.adapter_step]
    return next(iter(at or record.evaluations[-1:]), None)


def _loss(one: Evaluation, lowest: Evaluation | None) -> str:
    best = ", the lowest" if one is lowest else ""
    between = "" if one.low is None or one.high is None else f" ({one.low:.4f} to {one.high:.4f})"
    return f"{one.loss:.4f}{between} over {formatting.count(one.rows, 'example')}{best}"


def _cost(told: TrainingReport) -> str:
    if told.price is None:
        return "unknown: no price was known for these workers"
    return f"{dollars(told.worker_hours * told.price)} at {told.foreseen.get('price') or dollars(told.price)}"


def _restarts(restarts: Sequence[AttemptSpan]) -> str:
    if not restarts:
        return "none"
    known = [restart.lost_sec for restart in restarts if restart.lost_sec is not None]
    usd = [restart.usd for restart in restarts if restart.usd is not None]
    cost = f", {formatting.number(sum(known))} s since their checkpoints" if known else ""
    paid = f", {dollars(sum(usd))}" if usd else ""
    unseen = len(restarts) - len(known)
    return f"{len(restarts)}{cost}{paid}{f'; of {unseen} nobody saw the cost' if unseen else ''}"


def _adapter(record: TrainingRecord) -> str:
    if record.adapter_sha256 is None:
        return "none"
    size = sum(record.adapter_files.values()) / 1e6
    return f"of step {record.adapter_step:,}, {size:.1f} MB, sha256 {record.adapter_sha256}"


def _hours(seconds: float) -> str:
    return f"{formatting.number(seconds / 3600)} hours" if seconds >= 360 else f"{formatting.number(seconds)} s"


def _time(seconds: float) -> str:
    """`26 min`, `3.2 hours`, `48 s`."""
    if seconds < 100.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 6000.0 else f"{seconds / 3600.0:.1f} hours"


def dollars(amount: float | None) -> str:
    return "unknown" if amount is None else f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}"


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**30:.2f} GiB"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1f} %"
