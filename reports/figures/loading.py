"""04 model loading: from files to a model on the device: how long, where the time goes, what it then holds."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

from reports import text
from reports.figures.drawing import marks, rows
from reports.figures.drawing.board import Head, Sheet, board, head
from reports.figures.drawing.chart import Chart
from reports.figures.drawing.marks import Mark, Panel
from reports.figures.drawing.palette import BASELINE_TONE, OTHER_TONE, PUBLISHED
from reports.read import published, readings
from reports.read.readings import Reading
from reports.read.run import Run
from reports.summary.summary import Summary

_PRECISIONS = {"nf4": "4 bit (NF4)", "bf16": "16 bit (bf16)"}
_PARTS = (
    ("read_time_sec", "cold", "reading the files, cold"),
    ("read_time_sec", "warm", "reading the files, cached"),
    ("move_time_sec", None, "moving to the device"),
    ("quantize_time_sec", None, "quantizing"),
)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Seconds of loads and of their parts, one panel a precision, and the memory held."""

    over: Head
    steps: tuple[str, ...]
    seconds: tuple[Panel, ...]
    held: tuple[str, ...]
    memory: Panel | None
    has_published: bool


def gather(summary: Summary, run: Run) -> Data | None:
    loads = readings.pick(run, "load_time_sec", "cache", "precision", kind="loading")
    precisions = list(dict.fromkeys(str(one.context.get("precision")) for one in loads if one.value is not None))
    if not precisions:
        return None
    parts = {
        name: readings.pick(run, name, "cache", "precision", kind="loading")
        for name in dict.fromkeys(name for name, _, _ in _PARTS)
    }
    beside = published.beside(run)
    steps = ["load, cold", "load, cached", *(["load, published"] if beside else []), *(words for _, _, words in _PARTS)]
    seconds = tuple(
        Panel(
            title=f"{_PRECISIONS.get(precision, precision)}: seconds",
            marks=(
                _seconds(_find(loads, precision, "cold"), OTHER_TONE),
                _seconds(_find(loads, precision, "warm"), OTHER_TONE),
                *([_published(beside.loading.get(precision, {}).get("load_time_sec"), "s")] if beside else []),
                *(_seconds(_find(parts[name], precision, cache), BASELINE_TONE) for name, cache, _ in _PARTS),
            ),
        )
        for precision in precisions
    )
    held = readings.pick(run, "device_memory_bytes", "precision", kind="loading")
    peaks = readings.pick(run, "device_memory_peak_bytes", "precision", kind="loading")
    names, found = [], []
    for precision in precisions:
        for words, some, tone in (("held", held, OTHER_TONE), ("most while loading", peaks, BASELINE_TONE)):
            one = _find(some, precision, None)
            if one is not None and one.value is not None:
                reference = beside.loading.get(precision, {}).get("device_memory_bytes") if beside else None
                names.append(f"{_PRECISIONS.get(precision, precision)}, {words}")
                found.append(_bytes(one, tone, reference if words == "held" else None))
    saved = _saved(held)
    return Data(
        over=head(
            summary,
            _title(loads, saved),
            readings.spread_words(loads),
            f"{PUBLISHED} {beside.source}; state of its page cache not known" if beside else "",
        ),
        steps=tuple(steps),
        seconds=marks.shared(seconds),
        held=tuple(names),
        memory=Panel(title="Device memory, GB", marks=tuple(found)) if found else None,
        has_published=beside is not None,
    )


def _find(found: list[Reading], precision: str, cache: str | None) -> Reading | None:
    return next(
        (
            one
            for one in found
            if one.context.get("precision") == precision and (cache is None or one.context.get("cache") == cache)
        ),
        None,
    )


def _seconds(one: Reading | None, tone: str) -> Mark:
    if one is None:
        return Mark(value=None, words="not done")
    if one.value is None:
        return Mark(value=None, words=f"none: {one.note or 'not known'}")
    return Mark(value=one.value, words=one.words("s"), low=one.low, high=one.high, tone=tone)


def _published(value: float | None, unit: str) -> Mark:
    if value is None:
        return Mark(value=None, words="not published")
    return Mark(value=None, words=f"{PUBLISHED} {text.number(value)} {unit} published", published=(value,))


def _bytes(one: Reading, tone: str, reference: float | None) -> Mark:
    more = f"  {PUBLISHED} {text.number(reference / 1e9)} GB published" if reference else ""
    return Mark(
        value=(one.value or 0.0) / 1e9,
        words=one.words("GB", scale=1e9) + more,
        low=None if one.low is None else one.low / 1e9,
        high=None if one.high is None else one.high / 1e9,
        tone=tone,
        published=(reference / 1e9,) if reference else (),
    )


def _saved(held: list[Reading]) -> float | None:
    small, large = _find(held, "nf4", None), _find(held, "bf16", None)
    if small is None or large is None or not small.value or not large.value:
        return None
    return 100.0 * (1.0 - small.value / large.value)


def _title(loads: list[Reading], saved: float | None) -> str:
    cold, warm = _find(loads, "nf4", "cold"), _find(loads, "nf4", "warm")
    timed = [
        f"{text.number(one.value)} s {words}"
        for one, words in ((cold, "cold"), (warm, "with its files cached"))
        if one is not None and one.value is not None
    ]
    said = f"A 4-bit model loads in {text.listing(timed).replace(' and ', ', ')}" if timed else "Loading the model"
    return f"{said}; it holds {text.number(saved, 0)} % less memory than 16 bit" if saved is not None else said


def draw(data: Data, sheet: Sheet) -> Figure:
    first = marks.panels_height_in(len(data.steps), len(data.seconds), sheet)
    second = marks.panels_height_in(len(data.held), 1, sheet) if data.memory else 0.0
    drawing = board(data.over, sheet, first + second)
    marks.draw_panels(drawing, data.steps, data.seconds, aligned_with=data.held)
    if data.memory:
        marks.draw_panels(drawing, data.held, [data.memory], top_in=first, aligned_with=data.steps)
    return drawing.figure


def caption(data: Data) -> str:  # noqa: ARG001 - every caption takes its data
    return (
        "Blue is a whole load, grey its parts, each measured by itself: where a part is nearly as long as the load, "
        "that part is what to speed up."
    )


def alt(data: Data) -> str:
    memory = f" {rows.alt(data.held, [data.memory])}" if data.memory else ""
    return f"{rows.alt(data.steps, data.seconds)}{memory}"


LOADING = Chart(
    name="04_model_loading",
    title="Model loading",
    needs="a trial of suite loading",
    command="inv bench --suite=loading",
    gather=gather,
    draw=draw,
    caption=caption,
    alt=alt,
)
