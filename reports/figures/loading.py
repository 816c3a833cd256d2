"""Figure 04, model loading: time from files to a model on the device, and the model's memory."""

from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import Chart, Mark, MarkGroup, Panel, make_header, one_panel
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.drawing.style import BASELINE_TONE, OTHER_TONE
from reports.read import measurements, reference_results
from reports.read.loaded_run import Run
from reports.read.measurements import MeasuredValue
from reports.summary.summary import Summary

_PRECISIONS = {"nf4": "4 bit (NF4)", "bf16": "16 bit (bf16)"}
_TIMES = {"first_load_time_sec": "first load, cache as found", "load_time_sec": "load, cached"}
_MEMORY = (
    ("device_memory_bytes", "after loading", OTHER_TONE),
    ("device_memory_peak_bytes", "peak while loading", BASELINE_TONE),
)


def gather(summary: Summary, run: Run) -> RowFigure | None:
    measured = {name: _by_precision(run, name) for name in (*_TIMES, *(name for name, *_ in _MEMORY))}
    precisions = [precision for precision, load in measured["load_time_sec"].items() if load.value is not None]
    if not precisions:
        return None
    published = reference_results.matching_results(run)
    known = {} if published is None else published.loading

    def mark(name: str, precision: str, tone: str = OTHER_TONE) -> Mark:
        reference, (_, unit, scale) = known.get(precision, {}).get(name), measurements.title_unit_scale(name)
        scaled = None if reference is None else reference / scale
        return row_chart.measured_mark(measured[name].get(precision), unit, tone=tone, published=scaled)

    seconds = [
        Panel(
            title=f"{_PRECISIONS.get(precision, precision)}: seconds",
            marks=tuple(mark(name, precision) for name in _TIMES),
        )
        for precision in precisions
    ]
    memory = [
        (f"{_PRECISIONS.get(precision, precision)}, {label}", mark(name, precision, tone))
        for precision in precisions
        for name, label, tone in _MEMORY
    ]
    return RowFigure(
        header=make_header(
            summary,
            _title(measured),
            measurements.describe_spread(measured["load_time_sec"].values()),
            published=published,
            remark="; state of its page cache unknown",
        ),
        groups=(
            MarkGroup(names=tuple(_TIMES.values()), panels=tuple(seconds), has_one_axis=True),
            one_panel("Device memory, GB", ((name, each) for name, each in memory if each.value is not None)),
        ),
        caption=("The first load also starts CUDA and imports libraries, and its files may come from the disk."),
    )


def _by_precision(run: Run, name: str) -> dict[str, MeasuredValue]:
    """Map each precision to its first value of a measurement."""
    values: dict[str, MeasuredValue] = {}
    for value in measurements.select(run, name, "precision", kind="loading"):
        values.setdefault(str(value.context.get("precision")), value)
    return values


def _title(measured: dict[str, dict[str, MeasuredValue]]) -> str:
    load, held = measured["load_time_sec"].get("nf4"), measured["device_memory_bytes"]
    title = "Loading the model"
    if load is not None and load.value is not None:
        title = f"A 4-bit model loads in {formatting.number(load.value)} s with its files cached"
    small, large = (held[each].value if each in held else None for each in ("nf4", "bf16"))
    if not small or not large:
        return title
    return f"{title}; it takes {formatting.number(100.0 * (1.0 - small / large), 1)} % less memory than 16 bit"


LOADING = Chart(
    name="04_model_loading",
    title="Model loading",
    needs="a trial of suite loading",
    command="inv bench --suite=loading",
    gather=gather,
    is_folded=True,
)
