"""Sentences of the report, the finding and the recommendation, each with its interval; numbers of the first screen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.records.quality import QualityRecord
from bench.records.run import REPEATS, RunRecord
from bench.records.status import TrialStatus
from bench.records.trial import SUITE_NAMES, suite
from reports import formatting
from reports.read import measurements
from reports.read.fingerprint import Hosts
from reports.read.run import Run
from reports.statistics import per_config
from reports.statistics.types import Estimate, MeasuredRate, Ratio
from reports.summary import quality, tables
from reports.summary.cost import MEASURED_PHASE, Amount, FineTuning, Price
from reports.summary.loss_verdicts import NOT_SHOWN, verdict_of
from reports.summary.summary import ConfigurationRow, OtherConfiguration, Summary

SLOW_STEPS = 0.02  # elapsed throughput lower by more than this fraction is notable


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The configuration to train with: `row`.

    `fastest` is the reliable configuration with the highest steady rate of those that were shown to be faster than the
    baseline, else the one with the most useful tokens per second. `row` is `fastest` in the first case, else the
    baseline. `tied` were not shown to differ from `fastest` (fastest first, including the baseline). `passed_over` were
    faster, but are not reliable; `withheld` were faster, but not shown to be at the same loss.
    """

    row: ConfigurationRow
    fastest: ConfigurationRow
    tied: tuple[ConfigurationRow, ...]
    passed_over: tuple[ConfigurationRow, ...]
    withheld: tuple[ConfigurationRow, ...] = ()

    @property
    def is_shown_faster(self) -> bool:
        """True if `fastest` was shown to be faster than the baseline."""
        return self.fastest.useful_tokens_ratio is not None and self.fastest.useful_tokens_ratio.verdict == "faster"

    @property
    def is_of_single_processes(self) -> bool:
        """True if a single process of `fastest` and of the baseline is all that there is."""
        measured = (self.fastest.measured, self.row.measured)
        return self.row != self.fastest and all(each is not None and each.n_processes == 1 for each in measured)


def recommended_choice(summary: Summary) -> Choice | None:
    """Return `choose` of a summary's rows, computed once per summary."""
    cache = vars(summary)  # like functools.cached_property, which would need a circular import here
    if "choice" not in cache:
        cache["choice"] = choose(summary.rows, summary.quality)
    choice: Choice | None = cache["choice"]
    return choice


def choose(rows: Sequence[ConfigurationRow], losses: QualityRecord | None = None) -> Choice | None:
    """Choose a configuration; None if nothing was measured, or nothing at the same loss.

    If none is reliable, all measured ones are considered.
    """
    measured = sorted((row for row in rows if row.measured is not None), key=lambda row: -row.useful_rate)
    verdicts = {row.label: verdict_of(losses, row.trial) for row in measured}
    eligible = [row for row in measured if verdicts[row.label] not in NOT_SHOWN]
    if not eligible:
        return None
    reliable = [row for row in eligible if row.is_reliable] or eligible
    shown = [
        row for row in reliable if row.useful_tokens_ratio is not None and row.useful_tokens_ratio.verdict == "faster"
    ]
    fastest = max(shown, key=lambda row: row.steady_rate) if shown else reliable[0]
    comparable = [
        row
        for row in reliable
        if row != fastest and (losses is None or row.is_baseline or verdicts[row.label] != "unknown")
    ]
    choice = Choice(
        row=fastest,
        fastest=fastest,
        tied=tuple(row for row in comparable if not _differ(row, fastest, comparisons=len(measured) - 1)),
        passed_over=tuple(row for row in eligible if not row.is_reliable and row.useful_rate > fastest.useful_rate),
        withheld=tuple(
            row for row in measured if verdicts[row.label] in NOT_SHOWN and row.useful_rate > fastest.useful_rate
        ),
    )
    baseline = next((row for row in reliable if row.is_baseline), None)
    if choice.is_shown_faster or baseline is None or fastest.useful_tokens_ratio is None:
        return choice
    return replace(choice, row=baseline)


def _differ(first: ConfigurationRow, second: ConfigurationRow, *, comparisons: int) -> bool:
    if first.measured is None or second.measured is None:
        return True
    return (
        per_config.ratio(first.measured, second.measured, "useful_tokens", comparisons=comparisons).verdict is not None
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
        return f"{label} processed {claim(ratio)} as many samples per second as {baseline} {where}."
    if ratio is not None and ratio.verdict == "slower":
        return (
            f"No configuration was faster than {baseline}: the next fastest, {best.label}, processed "
            f"{claim(ratio)} as many samples per second {where}."
        )
    return (
        f"No configuration was shown to be faster than {baseline}: {best.label} processed {formatting.ratio(ratio)} "
        f"as many samples per second {where}{steady_text(ratio) or ', and the interval includes 1'}."
        if ratio is not None and ratio.low is not None
        else f"{best.label} processed {formatting.ratio(ratio)} as many samples per second as {baseline} {where}; "
        "without an interval no difference is shown."
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
    ratio, loss = fastest.useful_tokens_ratio, quality.claim(summary.quality, fastest.trial)
    passed = f"{_passed_over(chosen)}{quality.withheld_text(summary.quality, chosen.withheld)}"
    tied = [row.label for row in chosen.tied if not row.is_baseline]
    if fastest.is_baseline and len(summary.measured_rows) > 1:
        verb = "was" if len(tied) == 1 else "were"
        also = f"; {formatting.first_n(tied, 3)} {verb} not shown to be slower" if tied else ""
        return f"Stay with {fastest.label}: no configuration gave more useful tokens per second {where}{also}{passed}."
    if ratio is None:
        rate = formatting.estimate(None if fastest.measured is None else fastest.measured.elapsed_useful_tokens_per_sec)
        rank = "the only configuration measured" if len(summary.measured_rows) == 1 else "the fastest measured"
        at_loss = f", {loss}" if loss else ""
        speed = f"{rate} useful tokens per second per worker {where}{passed}"
        return f"{_label_with_count(fastest)} is {rank}{at_loss}: {speed}."
    gain = f"{claim(ratio)} the useful tokens per second of {summary.baseline}"
    if chosen.is_of_single_processes and ratio.low is None:
        return (
            f"Undecided: {fastest.label} gave {gain} {where}, but with one process of each a machine that changed "
            f"would look the same. Repeat it: `{repeat_command(summary.record)}`{passed}."
        )
    if not chosen.is_shown_faster:
        verb = "Stay" if chosen.row.is_baseline else "Train"
        also = f"; neither were {formatting.first_n(tied, 3)}" if tied else ""
        return (
            f"{verb} with {_label_with_count(chosen.row)}: {fastest.label} gave {gain} {where}, but was not shown to "
            f"be faster{steady_text(ratio)}{also}{passed}."
        )
    price = None if fastest.cost is None else fastest.cost.usd_per_million_useful_tokens.value
    dollars = "" if price is None else f" at ${formatting.number(price)} per million useful tokens"
    if loss:
        dollars += f", {loss},"
    if tied:
        options = f"{_label_with_count(fastest)}, or with {formatting.first_n(tied, 3)}, not shown to differ from it"
        return f"Train with {options}: {fastest.label} gave {gain}{dollars} {where}{passed}."
    return f"Train with {_label_with_count(fastest)}: {gain}{dollars} {where}{passed}."


def claim(ratio: Ratio) -> str:
    """Format a ratio with the interval that its verdict rests on: of the elapsed rates, else of the steady ones."""
    if ratio.verdict is None or ratio.is_shown_elapsed:
        return formatting.ratio(ratio)
    return f"{formatting.ratio(ratio.steady)} without slow steps and {formatting.ratio(ratio)} with them"


def steady_text(ratio: Ratio) -> str:
    """Say that elapsed and steady rates do not agree on a difference, or return ""."""
    intervals = [each for each in (ratio, ratio.steady) if each.low is not None and each.high is not None]
    if ratio.verdict is not None or all(each.low <= 1.0 <= each.high for each in intervals):  # type: ignore[operator]
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


def _label_with_count(row: ConfigurationRow) -> str:
    """Return the label, with the number of successful trials if some are lost, failed or missing."""
    return row.label if row.succeeded == row.planned else f"{row.label} ({row.succeeded} of {row.planned} trials)"


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
    location = f"{workers} of one machine" if record.is_on_one_machine else workers
    return f"on {location} ({hosts.device}, profile {record.profile})"


def describe_ends(rows: tuple[ConfigurationRow | OtherConfiguration, ...]) -> str:
    totals = {end.value: sum(row.ends.get(end, 0) for row in rows) for end in TrialStatus}
    totals["missing"] = sum(row.missing for row in rows)
    return ", ".join(f"{amount} {name}" for name, amount in totals.items() if amount) or "nothing was planned"


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A number with its name, and a detail in small print: interval or source."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class CostLine:
    """A number of GPUs, with the time for 10,000 samples and their cost at each price."""

    name: str
    detail: str
    time: tables.Cell
    amounts: tuple[tables.Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The cost of a fine-tuning with one configuration. `sources` has every price's source and date."""

    configuration: str
    prices: tuple[Tile, ...]
    lines: tuple[CostLine, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BilledTime:
    """The use of the workers' time, as a sentence and by parts."""

    sentence: str
    parts: tuple[tuple[str, str], ...]


def best_row(summary: Summary) -> ConfigurationRow | None:
    """Return the configuration to train with (`choose`); None if nothing was measured."""
    chosen = recommended_choice(summary)
    return None if chosen is None else chosen.row


def recommended_label(summary: Summary) -> str | None:
    """Return the label of `best_row`; None if it was not compared with another configuration."""
    row, measured = best_row(summary), summary.measured_rows
    return row.label if row is not None and len(measured) > 1 and any(other.is_baseline for other in measured) else None


def train_command(summary: Summary) -> str | None:
    """Return the command that trains with the recommended configuration; None if none is recommended."""
    return None if recommended_label(summary) is None else f"inv train --from={summary.record.run_id}"


def recommended_first(summary: Summary) -> tuple[ConfigurationRow, ...]:
    """Return all configurations in the plan's order, after the recommended one."""
    label = recommended_label(summary)
    return tuple(sorted(summary.rows, key=lambda row: row.label != label))


def tiles(summary: Summary) -> tuple[Tile, ...]:
    """Return at most four numbers about the best configuration; () if nothing was measured."""
    row = best_row(summary)
    if row is None or row.measured is None:
        return ()
    rate = row.measured.elapsed_useful_tokens_per_sec
    numbers = [
        Tile(
            name="Useful tokens per second and worker",
            value=formatting.number(rate.value),
            detail=_detail(rate, formatting.estimate_decimals(rate)),
        )
    ]
    ratio = row.useful_tokens_ratio
    if ratio is not None:
        decimals = formatting.ratio_decimals(ratio.low, ratio.high)
        detail = _detail(ratio, decimals, ratio.word or "not shown to differ")
        numbers.append(
            Tile(
                name=f"Against {summary.baseline}", value=f"{formatting.number(ratio.value, decimals)}x", detail=detail
            )
        )
    if row.cost is not None:
        amount = row.cost.usd_per_million_useful_tokens
        numbers.append(Tile(name="Per million useful tokens", value=_dollars(amount), detail=_price(row.cost.price)))
        tuning = next(iter(row.cost.fine_tunings), None)
        if tuning is not None:
            detail = f"in {formatting.duration(tuning.training_sec.value)} on {formatting.count(tuning.gpus, 'GPU')}"
            numbers.append(Tile(name="10,000 samples", value=_dollars(tuning.usd), detail=detail))
    else:
        where = "GPU" if row.peak_vram_bytes is not None else "process"
        numbers.append(Tile(name=f"Peak {where} memory", value=formatting.gigabytes(row.peak_bytes)))
    return tuple(numbers)


def costs(summary: Summary) -> Costs | None:
    """Return the cost of the best configuration's fine-tunings at every price; None without a price."""
    row = best_row(summary)
    if row is None or not row.costs or not row.costs[0].fine_tunings:
        return None
    lines = [
        CostLine(
            name=formatting.count(plan.gpus, "GPU"),
            detail=plan.scaling.source,
            time=tables.Cell(value=formatting.duration(plan.training_sec.value), details=_interval_details(plan)),
            amounts=tuple(_amount(cost.fine_tunings[number]) for cost in row.costs),
        )
        for number, plan in enumerate(row.costs[0].fine_tunings)
    ]
    sources = [price.description for price in summary.prices]
    if summary.hosted is not None:
        sources.append(summary.hosted.description)
    return Costs(
        configuration=row.label,
        prices=tuple(Tile(name=_price(cost.price), value="", detail=_price_name(cost.price)) for cost in row.costs),
        lines=tuple(lines),
        sources=tuple(sources),
    )


def energy_sentence(summary: Summary) -> str | None:
    """Describe the GPU energy of a fine-tuning with `best_row`; None if no power was sampled."""
    row = best_row(summary)
    if row is None or row.energy is None:
        return None
    joules = formatting.estimate(row.energy.joules_per_1000_useful_tokens, " J")
    return f"With {row.label}: {joules} per 1,000 useful tokens. {row.energy.sentence}"


def billed_time(summary: Summary) -> BilledTime | None:
    """Describe how the workers' time was used; None if no trial recorded when it ran."""
    used = summary.billed
    if used is None:
        return None
    sentence = (
        f"{formatting.count(used.workers, 'worker was', 'workers were')} held for "
        f"{formatting.duration(used.held_sec)} in total; "
        f"{formatting.number(used.useful_percent, 0)} % of it in measured steps. "
        f"Not measured: {formatting.join_with_and(list(used.unknown))}."
    )
    phases = [
        (f"{name}, between steps" if name == MEASURED_PHASE else name, sec) for name, sec in used.by_phase.items()
    ]
    parts = [("measured steps", used.useful_sec), *phases, ("between trials", used.idle_sec)]
    return BilledTime(
        sentence=sentence, parts=tuple((name, formatting.duration(seconds)) for name, seconds in parts if seconds > 0)
    )


def _detail(rate: Estimate | Ratio, decimals: int, verdict: str = "") -> str:
    mark = ", of one process" if formatting.interval_mark(rate) else ""
    return f"{formatting.span(rate.low, rate.high, decimals)} {verdict}".strip() + mark


def _dollars(amount: Amount) -> str:
    return f"${formatting.number(amount.value)}"


def _price(price: Price) -> str:
    return f"${price.usd_per_gpu_hour:,.2f} per GPU hour"


def _price_name(price: Price) -> str:
    return "as set" if price.name == "set" else price.name


def _interval_details(plan: FineTuning) -> tuple[str, ...]:
    low, high = plan.training_sec.low, plan.training_sec.high
    return () if low is None or high is None else (f"{formatting.duration(low)} to {formatting.duration(high)}",)


def _amount(plan: FineTuning) -> tables.Cell:
    usd, decimals = plan.usd, formatting.significant_decimals(plan.usd.value)
    spread = formatting.span(usd.low, usd.high, decimals).strip("()")
    billed = f"billed {formatting.number(plan.usd_billed.value, decimals)}" if plan.startup_sec is not None else ""
    return tables.Cell(value=_dollars(usd), details=tuple(filter(None, (spread, billed))))
