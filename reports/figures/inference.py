"""Figure 05, inference: generated tokens per second and time to the first, over batches, by precision and path."""

from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import Chart, Mark, MarkGroup, Panel, make_header
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.drawing.style import ACCENT_TONE, OTHER_TONE
from reports.read import measurements, reference_results
from reports.read.loaded_run import Run
from reports.read.measurements import MeasuredValue
from reports.summary.summary import Summary

_PRICED_BATCHES = (1, 8, 32)  # batches with a cost in the caption
_PRECISIONS = {"nf4": ("4 bit", OTHER_TONE), "bf16": ("16 bit", ACCENT_TONE)}
_MEASURES = (
    ("decode_tokens_per_sec", "Decoded tokens per second (logarithmic)"),
    ("time_to_first_token_sec", "Seconds to the first token (logarithmic)"),
)

Key = tuple[str, int, str]  # precision, batch, path
Values = dict[Key, MeasuredValue]


def gather(summary: Summary, run: Run) -> RowFigure | None:
    measured = [_values(run, name) for name, _ in _MEASURES]
    rates = measured[0]
    if not rates:
        return None
    published = reference_results.matching_results(run)
    known = {} if published is None else dict(published.inference["nf4"])
    rows = list(dict.fromkeys((precision, batch) for precision, batch, _ in rates))
    panels = tuple(
        Panel(
            title=title,
            marks=tuple(_mark(values, *row, known.get(row[1]) if row[0] == "nf4" else None) for row in rows),
            kind="dots",
            log=True,
        )
        for (_, title), values, known in zip(_MEASURES, measured, (known, {}), strict=True)
        if values
    )
    context = next(iter(rates.values())).context
    return RowFigure(
        header=make_header(
            summary,
            _title(rates),
            measurements.describe_spread(rates.values()),
            f"{context.get('prompt_tokens', 'unknown')} prompt tokens, {context.get('new_tokens', 'unknown')} new ones",
            published=published,
            remark=", 4 bit",
        ),
        groups=(
            MarkGroup(names=tuple(f"{_name(precision)}, batch {batch}" for precision, batch in rows), panels=panels),
        ),
        caption=(
            "Tokens per second of all sequences of a batch together; where they stop rising, the GPU is saturated."
            f"{' Vertical lines: with LoRA adapters on.' if any(path == 'adapter' for *_, path in rates) else ''}"
            f"{_cost_text(rates, summary)}"
        ),
    )


def _values(run: Run, name: str) -> Values:
    """Map each precision, batch and path to its value, in ascending batches."""
    values = {
        (str(value.context.get("precision")), int(value.context["batch"]), str(value.context.get("path"))): value
        for value in measurements.select(run, name, "batch", "path", "precision", kind="inference")
        if value.value is not None
    }
    precisions = list(dict.fromkeys(precision for precision, *_ in values))
    return dict(sorted(values.items(), key=lambda item: (precisions.index(item[0][0]), item[0][1])))


def _name(precision: str) -> str:
    return _PRECISIONS.get(precision, (precision, ""))[0]


def _mark(values: Values, precision: str, batch: int, published: float | None) -> Mark:
    adapter = values.get((precision, batch, "adapter"))
    suffix = "" if adapter is None else f"  | {formatting.number(adapter.value)} with LoRA"
    return row_chart.measured_mark(
        values.get((precision, batch, "base")),
        "",
        suffix=suffix,
        tone=_PRECISIONS.get(precision, (precision, OTHER_TONE))[1],
        published=published,
        limit=None if adapter is None else adapter.value,
    )


def _cost_text(rates: Values, summary: Summary) -> str:
    """Describe the cost of a million generated tokens, if the GPU only generates."""
    if summary.price is None:
        return ""
    per_hour = summary.price.usd_per_gpu_hour
    costs: dict[str, list[str]] = {}
    for (precision, batch, path), rate in rates.items():
        if batch in _PRICED_BATCHES and rate.value:
            text = f"${per_hour / 3600.0 / rate.value * 1e6:,.2f} at batch {batch}"
            costs.setdefault(f"{_name(precision)}, {path}", []).append(text)
    lines = "; ".join(f"{name}: {', '.join(each)}" for name, each in costs.items())
    return f" A million generated tokens at ${per_hour:,.2f} a GPU hour: {lines}." if lines else ""


def _title(rates: Values) -> str:
    (precision, batch, path), fastest = max(rates.items(), key=lambda item: item[1].value or 0.0)
    rate = formatting.number(fastest.value)
    return f"Generation reaches {rate} tokens per second at batch {batch} ({_name(precision)}, {path} path)"


INFERENCE = Chart(
    name="05_inference_performance",
    title="Inference",
    needs="a trial of suite inference",
    command="inv bench --suite=inference",
    gather=gather,
    is_folded=True,
)
