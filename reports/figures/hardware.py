"""03 hardware: what the chip itself reaches, against what its maker prints: the ceilings of everything else."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

from reports import text
from reports.figures.drawing import marks, rows
from reports.figures.drawing.board import Head, Sheet, board, head
from reports.figures.drawing.chart import Chart
from reports.figures.drawing.marks import Mark, Panel
from reports.figures.drawing.palette import OTHER_TONE, PUBLISHED
from reports.read import published, readings
from reports.read.readings import Reading
from reports.read.run import Run
from reports.summary.summary import Summary

_COPIES = (
    ("device_copy_gb_per_sec", "within the GPU's memory", "within memory"),
    ("host_to_device_gb_per_sec", "host to GPU, pinned", "host to GPU"),
    ("device_to_host_gb_per_sec", "GPU to host, pinned", "GPU to host"),
)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Matrix products by type and size, and copies by way: names and one panel each."""

    over: Head
    products: tuple[str, ...]
    tflops: Panel
    copies: tuple[str, ...]
    rates: Panel
    has_limit: bool
    has_published: bool


def gather(summary: Summary, run: Run) -> Data | None:
    products = readings.pick(run, "matmul_tflops", "dtype", "size", kind="hardware")
    copies = [(words, one) for name, words, _ in _COPIES for one in readings.pick(run, name, kind="hardware")]
    is_cpu = all(one.value is None for words, one in copies if words != _COPIES[0][1])
    if is_cpu:
        copies = [("within memory", one) for words, one in copies if one.value is not None]
    disk = readings.pick(run, "disk_read_gb_per_sec", "cold", kind="hardware")
    copies += [(f"model files from disk, {'cold' if one.context.get('cold') else 'cached'}", one) for one in disk]
    largest: dict[str, Reading] = {}
    for one in products:  # a type's largest product that could be had
        known = largest.get(one.context["dtype"])
        if known is None or known.value is None or (one.value is not None and _size(one) >= _size(known)):
            largest[one.context["dtype"]] = one
    had = {dtype: one for dtype, one in largest.items() if one.value is not None}
    if not had and not any(one.value is not None for _, one in copies):
        return None
    beside = published.beside(run)
    reference = None if beside is None else beside.hardware["device_copy_gb_per_sec"]
    title = _title(had)
    return Data(
        over=head(
            summary,
            title,
            readings.spread_words([*had.values(), *(one for _, one in copies)]),
            f"{PUBLISHED} {beside.source}" if beside is not None else "",
        ),
        products=tuple(f"{dtype}, {_size(one):,}" for dtype, one in largest.items()),
        tflops=Panel(
            title="Matrix products, TFLOP/s (type, size)", marks=tuple(_product(one) for one in largest.values())
        ),
        copies=tuple(words for words, _ in copies),
        rates=Panel(
            title="Copies and reads, GB/s (logarithmic)",
            marks=tuple(_copy(one, reference if words == _COPIES[0][1] else None) for words, one in copies),
            kind="dots",
            log=True,
        ),
        has_limit=any(one.share_percent for one in [*had.values(), *(one for _, one in copies)]),
        has_published=reference is not None,
    )


def _size(one: Reading) -> int:
    return int(one.context.get("size", 0))


def _title(had: dict[str, Reading]) -> str:
    one = had.get("bf16") or next(iter(had.values()), None)
    if one is None or one.value is None:
        return "What the machine itself moves in a second"
    share = f", {text.number(one.share_percent, 0)} % of the chip's published figure" if one.share_percent else ""
    return f"{one.context['dtype']} matrix products reach {text.number(one.value)} TFLOP/s{share}"


def _share(one: Reading) -> str:
    return f"  {text.number(one.share_percent, 0)} % of the chip's" if one.share_percent else ""


def _limit(one: Reading) -> float | None:
    return None if one.value is None or not one.share_percent else 100.0 * one.value / one.share_percent


def _product(one: Reading) -> Mark:
    if one.value is None:
        return Mark(value=None, words=f"none: {one.note or 'not known'}")
    return Mark(
        value=one.value,
        words=one.words("") + _share(one),
        low=one.low,
        high=one.high,
        tone=OTHER_TONE,
        limit=_limit(one),
    )


def _copy(one: Reading, reference: float | None) -> Mark:
    if one.value is None:
        return Mark(value=None, words=f"none: {one.note or 'not known'}")
    more = f"  {PUBLISHED} {text.number(reference)} published" if reference is not None else ""
    return Mark(
        value=one.value,
        words=one.words("") + _share(one) + more,
        low=one.low,
        high=one.high,
        published=() if reference is None else (reference,),
        limit=_limit(one),
    )


def draw(data: Data, sheet: Sheet) -> Figure:
    first = marks.panels_height_in(len(data.products), 1, sheet) if data.products else 0.0
    second = marks.panels_height_in(len(data.copies), 1, sheet) if data.copies else 0.0
    drawing = board(data.over, sheet, first + second)
    if data.products:
        marks.draw_panels(drawing, data.products, [data.tflops], aligned_with=data.copies)
    if data.copies:
        marks.draw_panels(drawing, data.copies, [data.rates], top_in=first, aligned_with=data.products)
    return drawing.figure


def caption(data: Data) -> str:
    limit = (
        "Upright lines are the chip's published figures: the gap is what no training can use. "
        if data.has_limit
        else ""
    )
    return f"{limit}These are the ceilings that every other number of this report is read against."


def alt(data: Data) -> str:
    return f"{rows.alt(data.products, [data.tflops])} {rows.alt(data.copies, [data.rates])}"


HARDWARE = Chart(
    name="03_hardware_performance",
    title="Hardware",
    needs="a trial of suite hardware",
    command="inv bench --suite=hardware",
    gather=gather,
    draw=draw,
    caption=caption,
    alt=alt,
)
