"""The sentences about a benchmark: recommendation, warnings, held-out losses, method. They decide nothing."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from bench.records.quality import LossCheck, QualityRecord
from bench.records.run import REPEATS, RunRecord
from bench.records.trial import SUITE_NAMES, Trial, suite
from bench.records.units import format_percent
from reports import formatting
from reports.statistics.types import Estimate, MeasuredRate, Ratio
from reports.summary.decisions import Advice, Choice
from reports.summary.loss_verdicts import NOT_SHOWN, difference_of, verdict_of
from reports.summary.rows import ConfigurationRow, PlannedRow
from reports.summary.summary import Summary
from reports.summary.warnings import RunWarning, WarningCode, count_ends

_MAX_PAIRS_SHOWN = 12
USUAL = "plain `inv train`"


def recommendation(summary: Summary) -> str:
    """Return the recommendation with its interval and what was not shown to differ from it, or why it is missing."""
    return _nothing_recommended(summary) if summary.choice is None else _advice(summary, summary.choice)


def _advice(summary: Summary, chosen: Choice) -> str:
    fastest, where = chosen.fastest, _where(chosen.fastest.measured, summary)
    ratio, loss = chosen.ratio, loss_claim(summary.quality, fastest.trial)
    passed = f"{_passed_over(chosen)}{_withheld(summary.quality, chosen.withheld)}"
    tied = formatting.first_n([row.label for row in chosen.tied if row != chosen.row and not row.is_baseline], 3)
    if chosen.advice is Advice.UNMEASURED:
        rates = "" if ratio is None else f", {claim(ratio)} the useful tokens per second of {_reference(summary)}"
        return (
            f"Train with {USUAL}, which this run did not measure. The fastest published configuration of those "
            f"measured is {_counted(fastest)}{rates} {where}{passed}."
        )
    if chosen.advice is Advice.STAY:
        also = f"; {tied} {'was' if ',' not in tied else 'were'} not shown to be slower" if tied else ""
        return f"Stay with {fastest.label}: no configuration gave more useful tokens per second {where}{also}{passed}."
    if ratio is None:
        rate = formatting.estimate(None if fastest.measured is None else fastest.measured.elapsed_useful_tokens_per_sec)
        rank = "the only configuration measured" if chosen.advice is Advice.ONLY else "the fastest measured"
        speed = f"{rate} useful tokens per second per worker {where}{passed}"
        return f"{_counted(fastest)} is {rank}{f', {loss}' if loss else ''}: {speed}."
    gain = f"{claim(ratio)} the useful tokens per second of {_reference(summary)}"
    if chosen.advice is Advice.UNDECIDED:
        return (
            f"Undecided: {fastest.label} gave {gain} {where}, but with one process of each a machine that changed "
            f"would look the same. Repeat it: `{repeat_command(summary.record)}`{passed}."
        )
    if chosen.advice is Advice.NOT_SHOWN:
        verb = "Stay" if chosen.row.is_baseline or chosen.row.trial.is_usual else "Train"
        also = f"; nor {'was' if ',' not in tied else 'were'} {tied}" if tied else ""
        return (
            f"{verb} with {_counted(chosen.row)}: {fastest.label} gave {gain} {where}, but was not shown to "
            f"be faster{_disagreement(ratio)}{also}{passed}."
        )
    price = None if fastest.cost is None else fastest.cost.usd_per_million_useful_tokens.value
    dollars = "" if price is None else f" at ${formatting.number(price)} per million useful tokens"
    dollars += f", {loss}," if loss else ""
    options, subject = _counted(fastest), ""
    if tied:
        options, subject = f"{options}, or with {tied}, not shown to differ from it", f"{fastest.label} gave "
    return f"Train with {options}: {subject}{gain}{dollars} {where}{passed}."


def _reference(summary: Summary) -> str:
    """Return the label of what the recommendation's ratio is against."""
    chosen = summary.choice
    return summary.baseline if chosen is None or chosen.reference is None else chosen.reference.label


def _nothing_recommended(summary: Summary) -> str:
    """Say why nothing is recommended, and what was measured instead."""
    if summary.measured_rows:
        withheld = formatting.first_n(not_shown_texts(summary.quality), 2)
        return f"No configuration is recommended, because none was shown to be at the same loss: {withheld}."
    kinds = list(dict.fromkeys(other.kind for other in summary.others if other.succeeded and other.n_measurements))
    others = f"Measured {formatting.join_with_and(kinds)} {_location(len(summary.record.workers), summary)}."
    if not kinds:
        ends = ends_text((*summary.rows, *summary.others))
        return f"No trial of this run succeeded ({ends}), so there is nothing to compare."
    if summary.rows:
        return f"No training trial succeeded ({ends_text(summary.rows)}), so nothing is compared. {others}"
    return others


def claim(ratio: Ratio) -> str:
    """Format a ratio with the interval that its verdict rests on: of the elapsed rates, else of the steady ones."""
    if ratio.verdict is None or ratio.is_shown_elapsed:
        return formatting.ratio(ratio)
    return f"{formatting.ratio(ratio.steady)} without slow steps and {formatting.ratio(ratio)} with them"


def _disagreement(ratio: Ratio) -> str:
    """Say that elapsed and steady rates do not agree on a difference, or return ""."""
    known: list[Estimate] = [ratio, ratio.steady]
    intervals = [(each.low, each.high) for each in known if each.low is not None and each.high is not None]
    if ratio.verdict is not None or all(low <= 1.0 <= high for low, high in intervals):
        return ""
    return f": without slow steps it is {formatting.ratio(ratio.steady)}, so it cannot be told"


def repeat_command(record: RunRecord) -> str:
    """Return the command that measures the trials of a run again, each several times."""
    if record.suite not in SUITE_NAMES:
        return f"inv bench --trial-file=FILE --repeats={REPEATS}"
    flag = f"--{record.suite}" if record.suite in ("quick", "full") else f"--suite={record.suite}"
    first = record.planned[0].trial
    known = {trial.trial_id for trial in suite(record.suite, record.profile, first.model, first.data)}
    names = list(dict.fromkeys(planned.trial.trial_id for planned in record.planned))
    only = "" if set(names) == known else f" --only={','.join(names)}"
    return f"inv bench {flag}{only} --repeats={REPEATS}"


def _counted(row: ConfigurationRow) -> str:
    """Return the name, with the number of successful trials if some are lost, failed or missing."""
    name = USUAL if row.trial.is_usual else row.label
    return name if row.succeeded == row.planned else f"{name} ({row.succeeded} of {row.planned} trials)"


def _passed_over(chosen: Choice) -> str:
    counts = [f"{row.succeeded} of {row.planned} trials of {row.label}" for row in chosen.passed_over]
    return f"; faster but not reliable: only {formatting.first_n(counts, 2)} succeeded" if counts else ""


def _withheld(record: QualityRecord | None, rows: Sequence[ConfigurationRow]) -> str:
    checks = [(row.label, None if record is None else record.find(row.trial)) for row in rows]
    texts = [f"{label} ({difference_text(check)})" for label, check in checks if check is not None]
    return f"; faster, but not shown to be at the same loss: {formatting.first_n(texts, 2)}" if texts else ""


def _where(measured: MeasuredRate | None, summary: Summary) -> str:
    return _location(0 if measured is None else measured.n_workers, summary)


def _location(amount: int, summary: Summary) -> str:
    workers = formatting.count(amount, "worker")
    location = f"{workers} of one machine" if summary.record.is_on_one_machine else workers
    return f"on {location} ({summary.hosts.device}, profile {summary.record.profile})"


def ends_text(rows: Sequence[PlannedRow]) -> str:
    """Return how the trials of these rows ended: `3 SUCCEEDED, 1 missing`."""
    return _counts_text(count_ends(rows)) or "nothing was planned"


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in counts.items())


def unfit(summary: Summary) -> str:
    """Name the configurations that need more memory than there is; "" without any."""
    labels = summary.unfit_labels
    verb = "does" if len(labels) == 1 else "do"
    text = f"{formatting.first_n(labels)} {verb} not fit into memory: every trial ended OUT_OF_MEMORY."
    return text if labels else ""


def cautions(summary: Summary) -> tuple[str, ...]:
    """Return every warning as a sentence, the most important first."""
    return tuple(map(warning_text, summary.warnings))


def warning_text(warning: RunWarning) -> str:
    """Return a warning's sentence."""
    return _WARNINGS[warning.code](**warning.values)


def _flag(trials: list[str], total: int, workers: list[str], flag: str, *, is_worst: bool) -> str:
    where = ", ".join(trials) if len(trials) <= 3 else f"{len(trials)} trials on {formatting.first_n(workers, 3)}"
    where = f"all {total} trials" if len(trials) == total > 2 else where
    return f"{where}: {'at worst ' if is_worst else ''}{flag}"


_WARNINGS: dict[WarningCode, Callable[..., str]] = {
    WarningCode.LOSS_PENDING: (
        "The held-out loss of {label} was not compared: `inv bench --resume={run_id}` continues."
    ).format,
    WarningCode.LOSS_UNKNOWN: (
        "{label} computes products in 8 bits, and its held-out loss was not compared with the reference: "
        "`inv bench --quality` compares it."
    ).format,
    WarningCode.INCOMPLETE: lambda trials, planned, ends: (
        f"{trials} of {formatting.count(planned, 'planned trial')} did not succeed ({_counts_text(ends)}); the numbers "
        "are of the others."
    ),
    WarningCode.REJECTED: lambda files: f"{formatting.count(files, 'file was', 'files were')} rejected; see Failures.",
    WarningCode.NO_BASELINE: "{baseline} has no successful trial, so no configuration can be compared with it.".format,
    WarningCode.STOPPED: lambda trials, run_id: (
        f"{formatting.count(trials, 'trial was', 'trials were')} stopped or lost, through no fault of a configuration: "
        f"`inv bench --resume={run_id}` tries again."
    ),
    WarningCode.DEVICES: lambda devices: (
        f"The workers have different devices ({', '.join(devices)}): their numbers are mixed."
    ),
    WarningCode.CONDITIONS: lambda keys: (
        f"Trials ran under different conditions, see Fingerprint: {formatting.first_n(keys)}."
    ),
    WarningCode.CONTENTION: lambda workers, threads, cores: (
        f"{workers} workers with {formatting.count(threads, 'thread')} each shared {formatting.count(cores, 'core')} "
        "of one machine, so they slowed each other down: compare these configurations only with each other."
    ),
    WarningCode.CPU_PRICE: lambda: (
        "The price is a GPU's, but the speed is a CPU's: the dollars only show how cost depends on speed."
    ),
    WarningCode.SLOW_WORKER: lambda worker, share, causes, trials: (
        f"{worker} is {format_percent(share)} slower than the other workers"
        + "".join(f", {flag} ({count} of {trials} trials)" for flag, count in causes.items())
        + "."
    ),
    WarningCode.SPREAD: lambda label, ratio, also: (
        f"{label}: the slowest worker took {formatting.number(ratio, 2)}x the fastest worker's time for a step"
        + (f"; a large spread also in {formatting.first_n(also, 3)}." if also else ".")
    ),
    WarningCode.DRIFT: lambda change, low, high: (
        f"Steps took {change:+.2g} % ({low:+.2g} to {high:+.2g} %) at the run's end; a line over the trials' times was "
        "taken off."
    ),
    WarningCode.SLOW_STEPS: lambda labels, share: (
        f"Slow steps make the elapsed throughput of {formatting.first_n(labels, 3)} lower than the steady state, by up "
        f"to {format_percent(share, 1)}; the headline, times and dollars use elapsed throughput."
    ),
    WarningCode.FLAG: _flag,
}


def loss_claim(record: QualityRecord | None, trial: Trial) -> str:
    """Return `at the same loss (difference +0.02 %, at most +0.06 %)`; empty if it was not shown."""
    check = None if record is None else record.find(trial)
    if check is None or verdict_of(record, trial) != "same":
        return ""
    difference = difference_of(check)
    is_lower = difference is not None and difference.high < 0.0
    return f"at {'a lower' if is_lower else 'the same'} loss ({difference_text(check)})"


def difference_text(check: LossCheck) -> str:
    """Return `difference +0.02 %, at most +0.06 %`, or the reason for its absence."""
    difference = difference_of(check)
    if difference is None:
        return check.reason or "one pair only"
    half = difference.high - difference.percent
    decimals = next((places for places in (2, 3) if round(half, places) > 0), 4)
    return f"difference {difference.percent:+.{decimals}f} %, at most {difference.high:+.{decimals}f} %"


def not_shown_texts(record: QualityRecord | None) -> list[str]:
    """Name every compared configuration that was not shown to be at the same loss, with its difference."""
    checks = () if record is None else record.checks
    return [
        f"{check.label} ({difference_text(check)})" for check in checks if verdict_of(record, check.trial) in NOT_SHOWN
    ]


def _loss_paragraphs(record: QualityRecord | None) -> Iterator[str]:
    """Yield the method, and each comparison."""
    if record is None or not record.checks:
        return
    yield (
        f"A configuration is at the same loss if its held-out loss is shown to be at most "
        f"{record.max_increase_percent:g} % above that of the reference. The trainings of a pair ({record.steps} steps "
        "each) have the same first adapters, rows and held-out examples; the bound is Student's t, one-sided 95 %, "
        "over pairs of different seeds."
    )
    for check in record.checks:
        pairs = ", ".join(f"{pair.loss:.4f} against {pair.reference:.4f}" for pair in check.pairs[:_MAX_PAIRS_SHOWN])
        losses = f"; {pairs} nats per target token" if pairs else ""
        count = formatting.count(len(check.pairs), "pair")
        yield f"Held-out loss of {check.label}, {count}: {difference_text(check)}{losses}."


def one_process_note(summary: Summary) -> str:
    """Name the configurations with an interval over the steps of one process; "" without any."""
    over = {row.label: row.measured.elapsed_samples_per_sec.over for row in summary.rows if row.measured is not None}
    labels = [label for label, unit in over.items() if unit == "steps"]
    note = (
        f"Intervals of {formatting.first_n(labels, 3)} are over the steps of one process: the variation between "
        "processes is assumed, and a second clock speed is not covered."
    )
    return note if labels else ""


_TRIALS = (
    "A trial is one process: it loads the model, warms up, then measures optimizer steps one by one. A "
    "configuration's step time is the geometric mean over its workers of their median step. All rates, ratios, hours "
    "and dollars use the elapsed throughput per worker: all amounts over the time of all steps of successful trials. "
    "Steady rates, the mean amount per step over the median step, are in summary.json."
)
_INTERVALS = (
    "Processes differ more than steps, so 95 % intervals are Student's t over workers if there are two or more, else "
    "over processes. With a single process the interval is over its steps, widened by the noise of the run's other "
    "processes, else by an assumed 1.5 %. The order of the trials differs between workers and repeats, so a machine "
    "that changes makes ratios less certain instead of wrong."
)
_RATIOS = (
    "Ratios are against {baseline}, worker by worker if both ran on the same ones. Their intervals are widened by the "
    "variation between texts if two configurations read different ones, and hold jointly in 95 % of runs. They are "
    "called faster or slower only if the interval of the steady rates' ratio excludes 1 and the elapsed rates differ "
    "by at least half as much; where the interval of the latter holds 1, the word is followed by steady. "
    "Configurations without a trial that ran out of memory, failed or timed out are preferred.{power}"
)
_AMOUNTS = (
    "Tokens count every computed position; useful tokens exclude padding. Memory is the largest peak of any worker. "
    "Loss is in nats per token, the median over workers of their first and last measured step."
)
_MEASUREMENTS = (
    "A measurement is the median of several repeats, with its 95 % interval; with fewer than six repeats or over "
    "several workers, with the smallest and the largest. A share is of the chip's published peak. A trial that did not "
    "succeed shows its measurements until then."
)


def method(summary: Summary) -> list[str]:
    """Return the paragraphs on method that apply to this report."""
    texts = [_TRIALS, _INTERVALS] if summary.rows else []
    if any(row.samples_ratio is not None for row in summary.rows):
        texts.append(_RATIOS.format(baseline=summary.baseline, power=_power(summary)))
    texts += [*([_AMOUNTS] if summary.rows else []), *_loss_paragraphs(summary.quality)]
    texts += [_MEASUREMENTS] if summary.measurements else []
    if summary.price is not None and summary.rows:
        texts.append(
            f"Dollars are {summary.price.usd_per_gpu_hour:,.2f} US$ per GPU hour ({summary.price.source}) times the "
            "elapsed time of 1,000 samples on one worker, including slow steps. Pulling the image, loading and idle "
            "time are billed but not included."
        )
        others = next((price.other_prices for price in summary.prices if price.other_prices), ())
        if others:
            listed = formatting.join_with_and([price.description for price in others])
            texts.append(f"Billed in addition, and not included in any amount here: {listed}.")
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
