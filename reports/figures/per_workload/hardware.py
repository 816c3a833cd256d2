"""03 hardware: what the chip itself reaches, against what its maker prints: the ceilings of everything else."""

from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.chart import Chart, head
from reports.figures.drawing.glyphs import RowFigure
from reports.figures.drawing.palette import PUBLISHED
from reports.figures.drawing.panel import Mark, MarkGroup, Panel
from reports.read import queries, reference_results
from reports.read.queries import MeasuredValue
from reports.read.run import Run
from reports.summary.summary import Summary

_COPIES = (
    ("device_copy_gb_per_sec", "within the GPU's memory", "within memory"),
    ("host_to_device_gb_per_sec", "host to GPU, pinned", "host to GPU"),
    ("device_to_host_gb_per_sec", "GPU to host, pinned", "GPU to host"),
)


def gather(summary: Summary, run: Run) -> RowFigure | None:
    products = queries.select(run, "matmul_tflops", "dtype", "size", kind="hardware")
    copies = [(words, one) for name, words, _ in _COPIES for one in queries.select(run, name, kind="hardware")]
    is_cpu = all(one.value is None for words, one in copies if words != _COPIES[0][1])
    if is_cpu:
        copies = [("within memory", one) for words, one in copies if one.value is not None]
    disk = queries.select(run, "disk_read_gb_per_sec", "cold", kind="hardware")
    copies += [(f"model files from disk, {'cold' if one.context.get('cold') else 'cached'}", one) for one in disk]
    largest: dict[str, MeasuredValue] = {}
    for product in products:  # a type's largest product that could be had
        dtype = str(product.context["dtype"])
        known = largest.get(dtype)
        if known is None or known.value is None or (product.value is not None and _size(product) >= _size(known)):
            largest[dtype] = product
    had = {dtype: one for dtype, one in largest.items() if one.value is not None}
    if not had and not any(one.value is not None for _, one in copies):
        return None
    beside = reference_results.matching_results(run)
    reference = None if beside is None else beside.hardware["device_copy_gb_per_sec"]
    title = _title(had)
    has_limit = any(one.share_percent for one in [*had.values(), *(one for _, one in copies)])
    limit = "Upright lines are the chip's published figures. " if has_limit else ""
    return RowFigure(
        over=head(
            summary,
            title,
            queries.describe_spread([*had.values(), *(one for _, one in copies)]),
            f"{PUBLISHED} {beside.source}" if beside is not None else "",
        ),
        groups=(
            MarkGroup(
                names=tuple(f"{dtype}, {_size(one):,}" for dtype, one in largest.items()),
                panels=(
                    Panel(title="Matrix products, TFLOP/s (type, size)", marks=tuple(map(_mark, largest.values()))),
                ),
            ),
            MarkGroup(
                names=tuple(words for words, _ in copies),
                panels=(
                    Panel(
                        title="Copies and reads, GB/s (logarithmic)",
                        marks=tuple(_mark(one, reference if words == _COPIES[0][1] else None) for words, one in copies),
                        kind="dots",
                        log=True,
                    ),
                ),
            ),
        ),
        caption=f"{limit}These rates are the ceilings for every other number of this report.",
    )


def _size(one: MeasuredValue) -> int:
    return int(one.context.get("size", 0))


def _title(had: dict[str, MeasuredValue]) -> str:
    one = had.get("bf16") or next(iter(had.values()), None)
    if one is None or one.value is None:
        return "Memory and disk bandwidth of the machine"
    share = f", {formatting.number(one.share_percent, 0)} % of the chip's published figure" if one.share_percent else ""
    return f"{one.context['dtype']} matrix products reach {formatting.number(one.value)} TFLOP/s{share}"


def _mark(one: MeasuredValue, reference: float | None = None) -> Mark:
    share = f"  {formatting.number(one.share_percent, 0)} % of the chip's peak" if one.share_percent else ""
    return row_chart.reading_mark(
        one,
        "",
        more=share + (f"  {PUBLISHED} {formatting.number(reference)} published" if reference is not None else ""),
        published=reference,
        limit=100.0 * one.value / one.share_percent if one.value is not None and one.share_percent else None,
    )


HARDWARE = Chart(
    name="03_hardware_performance",
    title="Hardware",
    needs="a trial of suite hardware",
    command="inv bench --suite=hardware",
    gather=gather,
    folded=True,
)
