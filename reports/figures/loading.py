"""Figure 04, model loading: time from files to a model on the device, its parts, and the model's memory."""

from bench.records.units import format_percent
from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import Chart, Mark, MarkGroup, Panel, make_header
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.drawing.style import BASELINE_TONE, OTHER_TONE, PUBLISHED
from reports.read import measurements, reference_results
from reports.read.loaded_run import Run
from reports.read.measurements import MeasuredValue
from reports.read.reference_results import PublishedResults
from reports.summary.summary import Summary

_PRECISION_NAMES = {"nf4": "4 bit (NF4)", "bf16": "16 bit (bf16)"}
_PARTS = (
    ("read_time_sec", "reading the files, cached"),
    ("move_time_sec", "moving to the device"),
    ("quantize_time_sec", "quantizing"),
)


def gather(summary: Summary, run: Run) -> RowFigure | None:
    first, loads = (
        measurements.select(run, name, "precision", kind="loading") for name in ("first_load_time_sec", "load_time_sec")
    )
    precisions = list(dict.fromkeys(str(load.context.get("precision")) for load in loads if load.value is not None))
    if not precisions:
        return None
    parts = {name: measurements.select(run, name, "precision", kind="loading") for name, _ in _PARTS}
    published = reference_results.matching_results(run)
    steps = [
        "first load, cache as found",
        "load, cached",
        *(["load, published"] if published else []),
        *(label for _, label in _PARTS),
    ]
    seconds = tuple(
        Panel(
            title=f"{_PRECISION_NAMES.get(precision, precision)}: seconds",
            marks=(
                row_chart.measured_mark(_find(first, precision), "s"),
                row_chart.measured_mark(_find(loads, precision), "s"),
                *([_published_mark(published.loading.get(precision, {}).get("load_time_sec"))] if published else []),
                *(
                    row_chart.measured_mark(_find(parts[name], precision), "s", tone=BASELINE_TONE)
                    for name, _ in _PARTS
                ),
            ),
        )
        for precision in precisions
    )
    held_memory = measurements.select(run, "device_memory_bytes", "precision", kind="loading")
    peak_memory = measurements.select(run, "device_memory_peak_bytes", "precision", kind="loading")
    names, memory_marks = [], []
    for precision in precisions:
        for label, candidates, tone in (
            ("after loading", held_memory, OTHER_TONE),
            ("peak while loading", peak_memory, BASELINE_TONE),
        ):
            memory_value = _find(candidates, precision)
            if memory_value is not None and memory_value.value is not None:
                published_bytes = published.loading.get(precision, {}).get("device_memory_bytes") if published else None
                known = published_bytes / 1e9 if published_bytes and label == "after loading" else None
                names.append(f"{_PRECISION_NAMES.get(precision, precision)}, {label}")
                memory_marks.append(row_chart.measured_mark(memory_value, "GB", scale=1e9, tone=tone, published=known))
    saved_percent = _saved_percent(held_memory)
    memory = Panel(title="Device memory, GB", marks=tuple(memory_marks))
    return RowFigure(
        header=make_header(
            summary,
            _title(loads, saved_percent),
            measurements.describe_spread(loads),
            published=published,
            remark="; state of its page cache unknown",
        ),
        groups=(
            MarkGroup(names=tuple(steps), panels=row_chart.share_axis(seconds)),
            MarkGroup(names=tuple(names), panels=(memory,)),
        ),
        caption=(
            "Blue is a whole load, grey its parts, each measured separately. A part nearly as long as the load is the "
            f"bottleneck.{_saved_note(saved_percent, published)}"
        ),
    )


def _saved_note(saved_percent: float | None, published: PublishedResults | None) -> str:
    if saved_percent is None or published is None:
        return ""
    full, small = (published.loading[precision]["device_memory_bytes"] for precision in ("bf16", "nf4"))
    return f" NF4 saves {saved_percent:.1f} % of the device memory ({format_percent(1.0 - small / full, 1)} published)."


def _find(values: list[MeasuredValue], precision: str) -> MeasuredValue | None:
    return next((value for value in values if value.context.get("precision") == precision), None)


def _published_mark(seconds: float | None) -> Mark:
    if seconds is None:
        return Mark(value=None, text="not published")
    return Mark(value=None, text=f"{PUBLISHED} {formatting.number(seconds)} s published", published=(seconds,))


def _saved_percent(held_memory: list[MeasuredValue]) -> float | None:
    nf4, bf16 = _find(held_memory, "nf4"), _find(held_memory, "bf16")
    if nf4 is None or bf16 is None or not nf4.value or not bf16.value:
        return None
    return 100.0 * (1.0 - nf4.value / bf16.value)


def _title(loads: list[MeasuredValue], saved_percent: float | None) -> str:
    load = _find(loads, "nf4")
    title = "Loading the model"
    if load is not None and load.value is not None:
        title = f"A 4-bit model loads in {formatting.number(load.value)} s with its files cached"
    return (
        f"{title}; it takes {formatting.number(saved_percent, 0)} % less memory than 16 bit"
        if saved_percent is not None
        else title
    )


LOADING = Chart(
    name="04_model_loading",
    title="Model loading",
    needs="a trial of suite loading",
    command="inv bench --suite=loading",
    gather=gather,
    is_folded=True,
)
