"""Explanation of the method, for the page and for report.md."""

import math
import statistics
from datetime import datetime

from bench.records.status import TrialStatus
from reports import formatting
from reports.summary import quality
from reports.summary.summary import Summary

_MEASUREMENTS = (
    "A measurement is repeated several times after a warm-up: its value is the median, and the range under it the 95 % "
    "interval of that median; with fewer than six repeats it goes from the smallest to the largest. If several workers "
    "measured the same quantity, the value is the median of theirs and the range is from the smallest to the largest. "
    "A share is of the chip's published peak, if that is known. A trial that did not succeed shows its measurements "
    "until then, marked with its status."
)


def paragraphs(summary: Summary) -> list[str]:
    """Return the paragraphs on method that apply to this report."""
    texts = [
        *(_training_paragraphs(summary) if summary.rows else []),
        *quality.paragraphs(summary.quality),
        *([_MEASUREMENTS] if summary.measurements else []),
    ]
    if summary.price is not None and summary.rows:
        texts.append(
            f"Dollars are {summary.price.usd_per_gpu_hour:,.2f} US$ per GPU hour ({summary.price.source}) times the "
            "elapsed time of 1,000 samples on one worker, including slow steps. Pulling the image, loading and idle "
            "time are billed but not included."
        )
        other_prices = next((price.other_prices for price in summary.prices if price.other_prices), ())
        if other_prices:
            descriptions = formatting.join_with_and([price.description for price in other_prices])
            texts.append(f"Billed in addition, and not included in any amount here: {descriptions}.")
    return texts or ["Nothing was measured."]


def _power(summary: Summary) -> str:
    """Return a sentence on the smallest difference that the run can show; "" if it has no interval."""
    ratios = [row.useful_tokens_ratio for row in summary.rows if row.useful_tokens_ratio is not None]
    halves = [
        100.0 * (math.sqrt(ratio.high / ratio.low) - 1.0) for ratio in ratios if ratio.low is not None and ratio.high
    ]
    if not halves:
        return ""
    percent = formatting.number(statistics.median(halves))
    return f" Half of the differences of {percent} % (median of the ratios), and most smaller ones, would be missed."


def _training_paragraphs(summary: Summary) -> list[str]:
    ratios = (
        f"Ratios are against {summary.baseline}. Configurations measured on the same workers are compared worker by "
        "worker, so that a worker that is slow for both cancels out. The variation between processes is estimated from "
        "all configurations together and from the configuration's own. The intervals of ratios are widened by the "
        "variation between texts if two configurations read different ones, as with another batch, and by the number "
        "of ratios, so that all of them hold jointly in 95 % of runs. The words faster and slower appear only if the "
        "interval of the steady rates' ratio excludes 1 and the elapsed rates differ by at least half as much; where "
        "the interval of the latter holds 1, the word is followed by steady. Configurations without a trial that ran "
        f"out of memory, failed or timed out are preferred to those with one.{_power(summary)}"
    )
    return [
        "A trial is one process: it loads the model, warms up, then measures optimizer steps one by one. Warm-up steps "
        "are recorded but not counted. A configuration's step time is the geometric mean over its workers of their "
        "median step. All rates, ratios, hours, dollars and energy use the elapsed throughput per worker: all amounts "
        "divided by the time of all steps. Steady rates, the mean amount per step divided by the median step, are in "
        "summary.json. Trials that did not succeed are listed with their reason and "
        "excluded from averages.",
        "Processes differ more than steps: two processes of the same configuration on the same GPU differed by 0.7 %, "
        "while the steps of each agreed within 0.1 %. So 95 % intervals are Student's t over workers if there are two "
        "or more (each the mean of its processes), else over processes. With a single process the interval is over its "
        "steps, widened by the noise of the run's other processes, else by an assumed 1.5 %; intervals with that "
        "assumption are marked. With one process of each, a ratio has no interval. The order of the trials differs "
        "between workers and repeats, so that a machine that changes makes ratios less certain instead of wrong; where "
        "enough trials were repeated, a line over their times is taken off.",
        *([ratios] if any(row.samples_ratio is not None for row in summary.rows) else []),
        "Tokens count every computed position; useful tokens exclude padding. Memory is the largest peak of any "
        "worker: of the GPU if there is one, else of the process. Loss is in nats per token, the median over workers "
        "of their first and last measured step.",
    ]


def facts(summary: Summary) -> list[tuple[str, str]]:
    """Return name and value of the facts that identify the run."""
    record = summary.record
    sha = record.provenance.get("git_sha")
    dirty = " with uncommitted changes" if record.provenance.get("git_dirty") else ""
    planned = len(record.planned)
    succeeded = summary.counts.get(TrialStatus.SUCCEEDED, 0)
    return [
        ("Run", record.run_id),
        ("Started", _format_time(record.created_at)),
        ("Suite", record.suite),
        ("Profile", record.profile),
        ("Spread", record.spread),
        ("Fleet", f"{record.fleet_kind}, {formatting.count(len(record.workers), 'worker')}"),
        ("Device", summary.hosts.device),
        ("Code", f"{str(sha)[:12]}{dirty}" if sha else "git revision unknown"),
        ("Trials", f"{succeeded} of {planned} succeeded"),
    ]


def _format_time(iso: str) -> str:
    """Format an ISO 8601 timestamp as `2026-03-01 10:15:00 UTC`; invalid ones are returned unchanged."""
    try:
        return datetime.fromisoformat(iso).strftime("%Y-%m-%d %H:%M:%S %Z").rstrip()
    except ValueError:
        return iso


def interval_mark_note(summary: Summary) -> str:
    """Explain the mark of an interval over one process; empty if no interval has it."""
    rates = (row.measured.elapsed_samples_per_sec for row in summary.measured_rows if row.measured is not None)
    note = (
        f"{formatting.ONE_PROCESS_MARK} over the steps of one process; the variation between processes is assumed, and "
        "a second clock speed that no process showed is not covered."
    )
    return note if any(formatting.interval_mark(rate) for rate in rates) else ""
