"""Sentences of the report: the finding and the recommendation, each with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from reports import formatting
from reports.read import measurements
from reports.read.fingerprint import Hosts
from reports.read.run import Run
from reports.statistics import per_config
from reports.statistics.types import MeasuredRate
from reports.summary.summary import ConfigurationRow, OtherConfiguration, Summary


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The configuration to train with: `row`.

    `fastest` is the reliable configuration with the most useful tokens per second. `row` is `fastest` if that was shown
    to be faster than the baseline, else the baseline. `tied` were not shown to differ from `fastest` (fastest first,
    including the baseline). `passed_over` were faster, but are not reliable.
    """

    row: ConfigurationRow
    fastest: ConfigurationRow
    tied: tuple[ConfigurationRow, ...]
    passed_over: tuple[ConfigurationRow, ...]

    @property
    def is_shown_faster(self) -> bool:
        """True if `fastest` was shown to be faster than the baseline."""
        return self.fastest.useful_tokens_ratio is not None and self.fastest.useful_tokens_ratio.verdict == "faster"


def recommended_choice(summary: Summary) -> Choice | None:
    """Return `choose` of a summary's rows, computed once per summary."""
    cache = vars(summary)  # like functools.cached_property, which would need a circular import here
    if "choice" not in cache:
        cache["choice"] = choose(summary.rows)
    choice: Choice | None = cache["choice"]
    return choice


def choose(rows: Sequence[ConfigurationRow]) -> Choice | None:
    """Choose a configuration; None if nothing was measured. If none is reliable, all measured ones are considered."""
    measured = sorted((row for row in rows if row.measured is not None), key=lambda row: -row.useful_rate)
    if not measured:
        return None
    reliable = [row for row in measured if row.is_reliable] or measured
    fastest = reliable[0]
    passed_over = tuple(row for row in measured if not row.is_reliable and row.useful_rate > fastest.useful_rate)
    tied = tuple(row for row in reliable[1:] if not _differ(row, fastest, comparisons=len(measured) - 1))
    baseline = next((row for row in reliable if row.is_baseline), None)
    choice = Choice(row=fastest, fastest=fastest, tied=tied, passed_over=passed_over)
    if choice.is_shown_faster or baseline is None or fastest.useful_tokens_ratio is None:
        return choice
    return Choice(row=baseline, fastest=fastest, tied=tied, passed_over=passed_over)


def _differ(first: ConfigurationRow, second: ConfigurationRow, *, comparisons: int) -> bool:
    if first.measured is None or second.measured is None:
        return True
    return (
        per_config.ratio(first.measured, second.measured, "useful_tokens_per_sec", comparisons=comparisons).verdict
        is not None
    )


ONE_PROCESS_BASIS = "The interval is of one process each; the distance to the next process is assumed, not measured."


def finding(
    rows: tuple[ConfigurationRow, ...], others: tuple[OtherConfiguration, ...], baseline: str, run: Run, hosts: Hosts
) -> str:
    """Return the main sentence: the fastest configuration against the baseline, or why none is compared.

    Without training configurations it says what was measured.
    """
    record = run.record
    measured = [row for row in rows if row.measured is not None]
    if not measured:
        others_text = _other_measurements(others, run, hosts)
        if rows and others_text:
            return f"No training trial succeeded ({describe_ends(rows)}), so nothing is compared. {others_text}"
        ends = describe_ends((*rows, *others))
        return others_text or f"No trial of this run succeeded ({ends}), so there is nothing to compare."
    compared = [row for row in measured if row.samples_ratio is not None]
    if not compared:
        best = max(measured, key=lambda row: row.samples_rate)
        where = _where_measured(best.measured, record, hosts)
        return f"{_label_with_count(best)} processed {_rate_text(best.measured)} {where}."
    best = max(compared, key=lambda row: row.samples_rate)
    ratio, where = best.samples_ratio, _where_measured(best.measured, record, hosts)
    if ratio is not None and ratio.verdict == "faster":
        label = _label_with_count(best)
        return f"{label} processed {formatting.ratio(ratio)} as many samples per second as {baseline} {where}."
    if ratio is not None and ratio.verdict == "slower":
        return (
            f"No configuration was faster than {baseline}: the next fastest, {best.label}, processed "
            f"{formatting.ratio(ratio)} as many samples per second {where}."
        )
    return (
        f"No configuration was shown to be faster than {baseline}: {best.label} processed {formatting.ratio(ratio)} "
        f"as many samples per second {where}, and the interval includes 1."
        if ratio is not None and ratio.low is not None
        else f"{best.label} processed {formatting.ratio(ratio)} as many samples per second as {baseline} {where}; "
        "a single step has no interval, so no difference is shown."
    )


def recommendation_text(summary: Summary) -> str:
    """Return the recommendation with its interval, and the configurations not shown to differ from it.

    A configuration is recommended over the baseline only if it was shown to be faster (`recommendation.choose`). If
    nothing can be recommended, this is the finding.
    """
    chosen = recommended_choice(summary)
    return summary.finding if chosen is None else spell_out(_recommended(summary, chosen))


def spell_out(sentence: str) -> str:
    """Replace the mark of an interval over one process by a sentence that explains it."""
    if formatting.ONE_PROCESS_MARK not in sentence:
        return sentence
    return f"{sentence.replace(formatting.ONE_PROCESS_MARK, '')} {ONE_PROCESS_BASIS}"


def has_basis(sentence: str) -> bool:
    """Return whether `spell_out` explained an interval over one process."""
    return sentence.endswith(ONE_PROCESS_BASIS)


def without_basis(sentence: str) -> str:
    """Return a sentence of `spell_out` without its explanation."""
    return sentence.removesuffix(ONE_PROCESS_BASIS).rstrip()


def _recommended(summary: Summary, chosen: Choice) -> str:
    fastest, where = chosen.fastest, _where_measured(chosen.fastest.measured, summary.record, summary.hosts)
    ratio, passed = fastest.useful_tokens_ratio, _passed_over(chosen)
    tied = [row.label for row in chosen.tied if not row.is_baseline]
    if fastest.is_baseline and len(summary.measured_rows) > 1:
        verb = "was" if len(tied) == 1 else "were"
        also = f"; {formatting.first_n(tied, 3)} {verb} not shown to be slower" if tied else ""
        return f"Stay with {fastest.label}: no configuration gave more useful tokens per second {where}{also}{passed}."
    if ratio is None:
        rate = formatting.estimate(None if fastest.measured is None else fastest.measured.elapsed_useful_tokens_per_sec)
        rank = "the only configuration measured" if len(summary.measured_rows) == 1 else "the fastest measured"
        return f"{_label_with_count(fastest)} is {rank}: {rate} useful tokens per second per worker {where}{passed}."
    gain = f"{formatting.ratio(ratio)} the useful tokens per second of {summary.baseline}"
    if not chosen.is_shown_faster:
        verb = "Stay" if chosen.row.is_baseline else "Train"
        also = f"; neither were {formatting.first_n(tied, 3)}" if tied else ""
        return (
            f"{verb} with {_label_with_count(chosen.row)}: {fastest.label} gave {gain} {where}, but was not shown to "
            f"be faster{also}{passed}."
        )
    price = None if fastest.cost is None else fastest.cost.usd_per_million_useful_tokens.value
    dollars = "" if price is None else f" at ${formatting.number(price)} per million useful tokens"
    if tied:
        options = f"{_label_with_count(fastest)}, or with {formatting.first_n(tied, 3)}, not shown to differ from it"
        return f"Train with {options}: {fastest.label} gave {gain}{dollars} {where}{passed}."
    return f"Train with {_label_with_count(fastest)}: {gain}{dollars} {where}{passed}."


def _label_with_count(row: ConfigurationRow) -> str:
    """Return the label, with the number of successful trials if the configuration is not reliable."""
    return row.label if row.is_reliable else f"{row.label} ({row.succeeded} of {row.planned} trials)"


def _passed_over(chosen: Choice) -> str:
    """Describe faster configurations that are not reliable, or return ""."""
    counts = [f"{row.succeeded} of {row.planned} trials of {row.label}" for row in chosen.passed_over]
    return f"; faster but not reliable: only {formatting.first_n(counts, 2)} succeeded" if counts else ""


def second_finding(rows: tuple[ConfigurationRow, ...], baseline: str) -> str | None:
    """Return the finding in useful tokens: they show whether work was saved, as shorter samples are cheaper."""
    others = [row for row in rows if row.samples_ratio is not None and row.useful_tokens_ratio is not None]
    if not others:
        return None
    best = max(others, key=lambda row: row.samples_rate)
    base = next(row for row in rows if row.label == baseline)
    sentence = (
        f"In useful tokens per second (padding not counted) {best.label} reached "
        f"{formatting.ratio(best.useful_tokens_ratio).replace(formatting.ONE_PROCESS_MARK, '')} the rate of {baseline}"
    )
    if best.trial.max_seq_len == base.trial.max_seq_len:
        return f"{sentence}."
    return (
        f"{sentence}: a sample of at most {best.trial.max_seq_len:,} tokens is not the same work "
        f"as one of at most {base.trial.max_seq_len:,}."
    )


def _other_measurements(others: tuple[OtherConfiguration, ...], run: Run, hosts: Hosts) -> str:
    """Describe what trials of other kinds measured, with each kind's first quantity; "" if none succeeded."""
    kinds = dict.fromkeys(other.kind for other in others if other.succeeded and other.n_measurements)
    measured = []
    for kind in kinds:
        table = run.measurements[
            (run.measurements["section"] == kind)
            & (run.measurements["status"] == TrialStatus.SUCCEEDED.value)
            & run.measurements["value"].notna()
        ]
        if table.empty:
            measured.append(f"{kind} (no value)")
            continue
        name = str(table["name"].iloc[0])
        title, unit, scale = measurements.title_unit_scale(name)
        values = table[table["name"] == name]["value"] / scale
        low, high = formatting.number(float(values.min())), formatting.number(float(values.max()))
        span = f"up to {high}" if measurements.is_rate(name) else high if low == high else f"{low} to {high}"
        measured.append(f"{kind} ({title} {span} {unit}".rstrip() + ")")
    workers = len({result.worker for result in run.results})
    return f"Measured {formatting.join_with_and(measured)} {_location(workers, run.record, hosts)}." if measured else ""


def _rate_text(measured: MeasuredRate | None) -> str:
    return (
        "unknown"
        if measured is None
        else f"{formatting.estimate(measured.elapsed_samples_per_sec)} samples per second per worker"
    )


def _where_measured(measured: MeasuredRate | None, record: RunRecord, hosts: Hosts) -> str:
    return _location(measured.n_workers if measured is not None else 0, record, hosts)


def _location(amount: int, record: RunRecord, hosts: Hosts) -> str:
    workers = formatting.count(amount, "worker")
    location = f"{workers} of one machine" if record.fleet_kind == "local" else workers
    return f"on {location} ({hosts.device}, profile {record.profile})"


def describe_ends(rows: tuple[ConfigurationRow | OtherConfiguration, ...]) -> str:
    totals = {end.value: sum(row.ends.get(end, 0) for row in rows) for end in TrialStatus}
    totals["missing"] = sum(row.missing for row in rows)
    return ", ".join(f"{amount} {name}" for name, amount in totals.items() if amount) or "nothing was planned"
