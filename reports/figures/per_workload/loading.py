"""04 model loading: from files to a model on the device: how long, where the time goes, what it then holds."""

from reports import formatting
from reports.figures.drawing import glyphs, row_chart
from reports.figures.drawing.chart import Chart, head
from reports.figures.drawing.glyphs import RowFigure
from reports.figures.drawing.palette import BASELINE_TONE, OTHER_TONE, PUBLISHED
from reports.figures.drawing.panel import Mark, MarkGroup, Panel
from reports.read import queries, reference_results
from reports.read.queries import MeasuredValue
from reports.read.run import Run
from reports.summary.summary import Summary

_PRECISIONS = {"nf4": "4 bit (NF4)", "bf16": "16 bit (bf16)"}
_PARTS = (
    ("read_time_sec", "cold", "reading the files, cold"),
    ("read_time_sec", "warm", "reading the files, cached"),
    ("move_time_sec", None, "moving to the device"),
    ("quantize_time_sec", None, "quantizing"),
)


def gather(summary: Summary, run: Run) -> RowFigure | None:
    loads = queries.select(run, "load_time_sec", "cache", "precision", kind="loading")
    precisions = list(dict.fromkeys(str(load.context.get("precision")) for load in loads if load.value is not None))
    if not precisions:
        return None
    parts = {
        name: queries.select(run, name, "cache", "precision", kind="loading")
        for name in dict.fromkeys(name for name, _, _ in _PARTS)
    }
    beside = reference_results.matching_results(run)
    steps = ["load, cold", "load, cached", *(["load, published"] if beside else []), *(words for _, _, words in _PARTS)]
    seconds = tuple(
        Panel(
            title=f"{_PRECISIONS.get(precision, precision)}: seconds",
            marks=(
                row_chart.reading_mark(_find(loads, precision, "cold"), "s"),
                row_chart.reading_mark(_find(loads, precision, "warm"), "s"),
                *([_published(beside.loading.get(precision, {}).get("load_time_sec"))] if beside else []),
                *(
                    row_chart.reading_mark(_find(parts[name], precision, cache), "s", tone=BASELINE_TONE)
                    for name, cache, _ in _PARTS
                ),
            ),
        )
        for precision in precisions
    )
    held = queries.select(run, "device_memory_bytes", "precision", kind="loading")
    peaks = queries.select(run, "device_memory_peak_bytes", "precision", kind="loading")
    names, found = [], []
    for precision in precisions:
        for words, some, tone in (("held", held, OTHER_TONE), ("most while loading", peaks, BASELINE_TONE)):
            one = _find(some, precision, None)
            if one is not None and one.value is not None:
                reference = beside.loading.get(precision, {}).get("device_memory_bytes") if beside else None
                names.append(f"{_PRECISIONS.get(precision, precision)}, {words}")
                found.append(_bytes(one, tone, reference if words == "held" else None))
    saved = _saved(held)
    memory = Panel(title="Device memory, GB", marks=tuple(found))
    return RowFigure(
        over=head(
            summary,
            _title(loads, saved),
            queries.describe_spread(loads),
            f"{PUBLISHED} {beside.source}; state of its page cache not known" if beside else "",
        ),
        groups=(
            MarkGroup(names=tuple(steps), panels=glyphs.shared(seconds)),
            MarkGroup(names=tuple(names), panels=(memory,)),
        ),
        caption=(
            "Blue is a whole load, grey its parts, each measured by itself: where a part is nearly as long as the "
            "load, that part is what to speed up."
        ),
    )


def _find(found: list[MeasuredValue], precision: str, cache: str | None) -> MeasuredValue | None:
    return next(
        (
            one
            for one in found
            if one.context.get("precision") == precision and (cache is None or one.context.get("cache") == cache)
        ),
        None,
    )


def _published(value: float | None) -> Mark:
    if value is None:
        return Mark(value=None, words="not published")
    return Mark(value=None, words=f"{PUBLISHED} {formatting.number(value)} s published", published=(value,))


def _bytes(one: MeasuredValue, tone: str, reference: float | None) -> Mark:
    more = f"  {PUBLISHED} {formatting.number(reference / 1e9)} GB published" if reference else ""
    published = reference / 1e9 if reference else None
    return row_chart.reading_mark(one, "GB", scale=1e9, more=more, tone=tone, published=published)


def _saved(held: list[MeasuredValue]) -> float | None:
    small, large = _find(held, "nf4", None), _find(held, "bf16", None)
    if small is None or large is None or not small.value or not large.value:
        return None
    return 100.0 * (1.0 - small.value / large.value)


def _title(loads: list[MeasuredValue], saved: float | None) -> str:
    cold, warm = _find(loads, "nf4", "cold"), _find(loads, "nf4", "warm")
    timed = [
        f"{formatting.number(one.value)} s {words}"
        for one, words in ((cold, "cold"), (warm, "with its files cached"))
        if one is not None and one.value is not None
    ]
    title = (
        f"A 4-bit model loads in {formatting.join_with_and(timed).replace(' and ', ', ')}"
        if timed
        else "Loading the model"
    )
    return f"{title}; it takes {formatting.number(saved, 0)} % less memory than 16 bit" if saved is not None else title


LOADING = Chart(
    name="04_model_loading",
    title="Model loading",
    needs="a trial of suite loading",
    command="inv bench --suite=loading",
    gather=gather,
    folded=True,
)
