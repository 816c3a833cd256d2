"""How the numbers came about, in plain words, for the page and for report.md."""

from datetime import datetime

from bench.records.result import TrialStatus
from reports import formatting
from reports.summary.summary import Summary

_MEASUREMENTS = (
    "A measurement is repeated several times after a warm-up: its value is the median, and the range under it the 95 % "
    "interval of that median. Where several workers measured the same, the value is the median of theirs and the range "
    "goes from the smallest to the largest. A share is of the chip's published peak; where none is known, none is "
    "given. A trial that did not succeed shows what it had measured until then, marked with its end."
)


def paragraphs(summary: Summary) -> list[str]:
    """The method of this very report; what does not apply to it is left out."""
    paragraphs_ = [
        *(_training_paragraphs(summary) if summary.rows else []),
        *([_MEASUREMENTS] if summary.measurements else []),
    ]
    if summary.price is not None and summary.rows:
        paragraphs_.append(
            f"Dollars are {summary.price.usd_per_gpu_hour:,.2f} US$ per GPU hour ({summary.price.source}) times the "
            "elapsed time of 1,000 samples on one worker, slow steps included. They leave out pulling the image, "
            "loading and idling, which are billed, too."
        )
        other_prices = next((price.other_prices for price in summary.prices if price.other_prices), ())
        if other_prices:
            paragraphs_.append(
                f"Paid for besides, and in no amount here: {formatting.join_with_and([price.description for price in other_prices])}."
            )
    return paragraphs_ or ["Nothing was measured."]


def _training_paragraphs(summary: Summary) -> list[str]:
    ratios = (
        f"Ratios are against {summary.baseline}. Configurations measured on the same workers are compared worker by "
        "worker, so that a worker that is slow for both cancels out. How much processes differ is taken from all "
        "configurations together; one that is noisier than the others keeps its own noise. The intervals of ratios are "
        "widened by how much texts differ where two configurations read different ones, as with another batch, and for "
        "how many ratios there are, so that all of them hold at once in 95 % of runs; the words faster and slower "
        "appear only where the interval excludes 1. A configuration that ran out of memory, failed or timed out in any "
        "trial is passed over for those that did not."
    )
    return [
        "A trial is one process: it loads the model, warms up, then measures optimizer steps one by one. Warm-up steps "
        "are kept but never counted. A configuration's step time is the geometric mean over its workers of their "
        "median step; a rate is the mean amount per step over that median, per worker: its steady state. Hours, "
        "dollars and energy are of elapsed throughput, all amounts over the time of all steps. Trials that did not "
        "succeed are listed with their reason and are in no average.",
        "Processes differ more than steps: the next process of the same configuration on the same GPU was 0.7 % away "
        "while each one's steps agreed within 0.1 %. So 95 % intervals are Student's t over workers where there are "
        "two or more (each the mean of its processes), else over processes. With a single process the interval is over "
        "its steps, by a block bootstrap that accounts for neighbouring steps being alike, widened by the noise of "
        "the run's other processes, else by an assumed 1 %; with that assumption it is marked.",
        *([ratios] if any(row.samples_ratio is not None for row in summary.rows) else []),
        "Tokens count every position computed; useful tokens leave padding out. Memory is the largest peak of any "
        "worker: of the GPU where there is one, of the process otherwise. Loss is in nats per token, the median over "
        "workers of their first and last measured step.",
    ]


def facts(summary: Summary) -> list[tuple[str, str]]:
    """Name and value of what identifies the run."""
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
    """`2026-03-01 10:15:00 UTC`; what is not a date as it stands."""
    try:
        return datetime.fromisoformat(iso).strftime("%Y-%m-%d %H:%M:%S %Z").rstrip()
    except ValueError:
        return iso


def interval_mark_note(summary: Summary) -> str:
    """What the mark of an interval over one process means; empty where none has it."""
    rates = (row.measured.samples_per_sec for row in summary.measured_rows if row.measured is not None)
    note = f"{formatting.ONE_PROCESS_MARK} over the steps of one process; how far the next is from it is assumed."
    return note if any(formatting.interval_mark(rate) for rate in rates) else ""
