"""The report's words: the finding and the recommendation, each a sentence with its interval."""

from bench.records.result import TrialStatus
from bench.records.run import RunRecord
from reports import formatting
from reports.read import measurements
from reports.read.fingerprint import Hosts
from reports.read.run import Run
from reports.statistics.types import MeasuredRate
from reports.summary.recommendation import Choice, recommended_choice
from reports.summary.summary import ConfigurationRow, Other, Summary


def finding(
    rows: tuple[ConfigurationRow, ...], others: tuple[Other, ...], baseline: str, run: Run, hosts: Hosts
) -> str:
    """The one sentence a reader takes away: the fastest configuration against the baseline, or why there is none.

    Without training configurations: what was measured instead.
    """
    record = run.record
    measured = [row for row in rows if row.measured is not None]
    if not measured:
        taken = _taken(others, run, hosts)
        if rows and taken:
            return f"No training trial succeeded ({ends_in_words(rows)}), so nothing is compared. {taken}"
        return (
            taken or f"No trial of this run succeeded ({ends_in_words((*rows, *others))}): there is nothing to compare."
        )
    compared = [row for row in measured if row.samples_ratio is not None]
    if not compared:
        best = max(measured, key=lambda row: row.samples_rate)
        return f"{_named(best)} processed {_absolute(best.measured)} {_setting(best.measured, record, hosts)}."
    best = max(compared, key=lambda row: row.samples_rate)
    ratio, where = best.samples_ratio, _setting(best.measured, record, hosts)
    if ratio is not None and ratio.verdict == "faster":
        return f"{_named(best)} processed {formatting.ratio(ratio)} as many samples per second as {baseline} {where}."
    if ratio is not None and ratio.verdict == "slower":
        return (
            f"No configuration was faster than {baseline}: the next, {best.label}, processed "
            f"{formatting.ratio(ratio)} as many samples per second {where}."
        )
    return (
        f"No configuration was shown to be faster than {baseline}: {best.label} processed {formatting.ratio(ratio)} "
        f"as many samples per second {where}, and that interval includes 1."
        if ratio is not None and ratio.low is not None
        else f"{best.label} processed {formatting.ratio(ratio)} as many samples per second as {baseline} {where}; "
        "one step gives no interval, so no difference is shown."
    )


def recommendation_text(summary: Summary) -> str:
    """What to run, in one sentence with its interval, and what could not be told from it (`choice.choose`).

    Without a configuration that was shown to be faster than the baseline none is recommended over it; without training
    the finding stands.
    """
    chosen = recommended_choice(summary)
    return summary.finding if chosen is None else spell_out(_recommended(summary, chosen))


def spell_out(sentence: str) -> str:
    """A sentence in which the mark of an interval over one process is said in words."""
    if formatting.ONE_PROCESS not in sentence:
        return sentence
    plain = sentence.replace(formatting.ONE_PROCESS, "")
    return f"{plain} The interval is of one process each; how far the next is from it was assumed, not measured."


def _recommended(summary: Summary, chosen: Choice) -> str:
    fastest, where = chosen.fastest, _setting(chosen.fastest.measured, summary.record, summary.hosts)
    ratio, passed = fastest.useful_tokens_ratio, _passed_over(chosen)
    tied = [row.label for row in chosen.tied if not row.is_baseline]
    if fastest.is_baseline and len(summary.measured_rows) > 1:
        were = "was" if len(tied) == 1 else "were"
        also = f"; {formatting.first_n(tied, 3)} {were} not shown to be slower" if tied else ""
        return f"Stay with {fastest.label}: no configuration gave more useful tokens per second {where}{also}{passed}."
    if ratio is None:
        rate = formatting.estimate(None if fastest.measured is None else fastest.measured.useful_tokens_per_sec)
        alone = "the only configuration measured" if len(summary.measured_rows) == 1 else "the fastest measured"
        return f"{_named(fastest)} is {alone}: {rate} useful tokens per second per worker {where}{passed}."
    gain = f"{formatting.ratio(ratio)} the useful tokens per second of {summary.baseline}"
    if not chosen.is_shown:
        verb = "Stay" if chosen.row.is_baseline else "Train"
        also = f", and neither do the rates of {formatting.first_n(tied, 3)}" if tied else ""
        return (
            f"{verb} with {_named(chosen.row)}: {fastest.label} gave {gain} {where}, which does not show it to be "
            f"faster{also}{passed}."
        )
    price = None if fastest.cost is None else fastest.cost.usd_per_million_useful_tokens.value
    dollars = "" if price is None else f" at ${formatting.number(price)} per million useful tokens"
    if tied:
        set_of = f"{_named(fastest)}, or with {formatting.first_n(tied, 3)}, not shown to differ from it"
        return f"Train with {set_of}: {fastest.label} gave {gain}{dollars} {where}{passed}."
    return f"Train with {_named(fastest)}: {gain}{dollars} {where}{passed}."


def _named(row: ConfigurationRow) -> str:
    """Its label; with how many of its trials succeeded where it failed in others."""
    return row.label if row.is_reliable else f"{row.label} ({row.succeeded} of {row.planned} trials)"


def _passed_over(chosen: Choice) -> str:
    """`; batch-16 was faster, but 3 of 12 trials of it succeeded`."""
    said = [f"{row.succeeded} of {row.planned} trials of {row.label}" for row in chosen.passed_over]
    return f"; passed over, though faster: only {formatting.first_n(said, 2)} succeeded" if said else ""


def second_finding(rows: tuple[ConfigurationRow, ...], baseline: str) -> str | None:
    """The same in useful tokens: shorter samples are cheaper, so only these say whether work was saved."""
    others = [row for row in rows if row.samples_ratio is not None and row.useful_tokens_ratio is not None]
    if not others:
        return None
    best = max(others, key=lambda row: row.samples_rate)
    base = next(row for row in rows if row.label == baseline)
    sentence = (
        f"In useful tokens per second (padding not counted) {best.label} reached "
        f"{formatting.ratio(best.useful_tokens_ratio).replace(formatting.ONE_PROCESS, '')} the rate of {baseline}"
    )
    if best.trial.max_seq_len == base.trial.max_seq_len:
        return f"{sentence}."
    return (
        f"{sentence}: a sample of at most {best.trial.max_seq_len:,} tokens is not the same work "
        f"as one of at most {base.trial.max_seq_len:,}."
    )


def _taken(others: tuple[Other, ...], run: Run, hosts: Hosts) -> str:
    """What trials of other kinds measured, each kind with its first quantity's range; empty where none succeeded."""
    kinds = dict.fromkeys(other.kind for other in others if other.succeeded and other.n_measurements)
    measured = []
    for kind in kinds:
        mine = run.measurements[
            (run.measurements["section"] == kind)
            & (run.measurements["status"] == TrialStatus.SUCCEEDED.value)
            & run.measurements["value"].notna()
        ]
        if mine.empty:
            measured.append(f"{kind} (no value)")
            continue
        name = str(mine["name"].iloc[0])
        words, unit, scale = measurements.words_unit_scale(name)
        values = mine[mine["name"] == name]["value"] / scale
        low, high = formatting.number(float(values.min())), formatting.number(float(values.max()))
        span = f"up to {high}" if measurements.is_rate(name) else high if low == high else f"{low} to {high}"
        measured.append(f"{kind} ({words} {span} {unit}".rstrip() + ")")
    workers = len({result.worker for result in run.results})
    return f"Measured {formatting.listing(measured)} {_place(workers, run.record, hosts)}." if measured else ""


def _absolute(measured: MeasuredRate | None) -> str:
    return (
        "unknown"
        if measured is None
        else f"{formatting.estimate(measured.samples_per_sec)} samples per second per worker"
    )


def _setting(measured: MeasuredRate | None, record: RunRecord, hosts: Hosts) -> str:
    return _place(measured.n_workers if measured is not None else 0, record, hosts)


def _place(amount: int, record: RunRecord, hosts: Hosts) -> str:
    workers = formatting.count(amount, "worker")
    place = f"{workers} of one machine" if record.fleet_kind == "local" else workers
    return f"on {place} ({hosts.device}, profile {record.profile})"


def ends_in_words(rows: tuple[ConfigurationRow | Other, ...]) -> str:
    totals = {end.value: sum(row.ends.get(end, 0) for row in rows) for end in TrialStatus}
    totals["missing"] = sum(row.missing for row in rows)
    return ", ".join(f"{amount} {name}" for name, amount in totals.items() if amount) or "nothing was planned"
