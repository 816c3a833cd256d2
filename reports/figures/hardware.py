"""Figure 03, hardware: rates that the chip reaches, against its published ones: limits for all other numbers."""

from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import Chart, Mark, make_header, one_panel
from reports.figures.drawing.row_chart import RowFigure
from reports.read import measurements, reference_results
from reports.read.loaded_run import Run
from reports.read.measurements import MeasuredValue
from reports.summary.summary import Summary

_COPIES = (
    ("device_copy_gb_per_sec", "within the GPU's memory"),
    ("host_to_device_gb_per_sec", "host to GPU, pinned"),
    ("device_to_host_gb_per_sec", "GPU to host, pinned"),
)


def gather(summary: Summary, run: Run) -> RowFigure | None:
    products = measurements.select(run, "matmul_tflops", "dtype", "size", kind="hardware")
    copies = [(label, copy) for name, label in _COPIES for copy in measurements.select(run, name, kind="hardware")]
    is_cpu = all(copy.value is None for label, copy in copies if label != _COPIES[0][1])
    if is_cpu:
        copies = [("within memory", copy) for label, copy in copies if copy.value is not None]
    largest: dict[str, MeasuredValue] = {}
    for product in products:  # the largest product measured of each type
        dtype = str(product.context["dtype"])
        current = largest.get(dtype)
        if current is None or current.value is None or (product.value is not None and _size(product) >= _size(current)):
            largest[dtype] = product
    reached = {dtype: copy for dtype, copy in largest.items() if copy.value is not None}
    if not reached and not any(copy.value is not None for _, copy in copies):
        return None
    published = reference_results.matching_results(run)
    published_copy_rate = None if published is None else published.hardware["device_copy_gb_per_sec"]
    shown = [*reached.values(), *(copy for _, copy in copies)]
    has_limit = any(copy.share_percent for copy in shown)
    limit = "Vertical lines are the chip's published figures. " if has_limit else ""
    return RowFigure(
        header=make_header(
            summary,
            _title(reached),
            measurements.describe_spread(shown),
            published=published,
        ),
        groups=(
            one_panel(
                "Matrix products, TFLOP/s (type, size)",
                ((f"{dtype}, {_size(product):,}", _mark(product)) for dtype, product in largest.items()),
            ),
            one_panel(
                "Copies and reads, GB/s (logarithmic)",
                (
                    (label, _mark(copy, published_copy_rate if label == _COPIES[0][1] else None))
                    for label, copy in copies
                ),
                kind="dots",
                log=True,
            ),
        ),
        caption=f"{limit}These rates are upper limits for all other numbers of this report.",
    )


def _size(product: MeasuredValue) -> int:
    return int(product.context.get("size", 0))


def _title(reached: dict[str, MeasuredValue]) -> str:
    product = reached.get("bf16") or next(iter(reached.values()), None)
    if product is None or product.value is None:
        return "Memory bandwidth of the machine"
    share = (
        f", {formatting.number(product.share_percent, 0)} % of the chip's published figure"
        if product.share_percent
        else ""
    )
    return f"{product.context['dtype']} matrix products reach {formatting.number(product.value)} TFLOP/s{share}"


def _mark(measured: MeasuredValue, published: float | None = None) -> Mark:
    share = f"  {formatting.number(measured.share_percent, 0)} % of the chip's peak" if measured.share_percent else ""
    return row_chart.measured_mark(
        measured,
        "",
        suffix=share,
        published=published,
        limit=100.0 * measured.value / measured.share_percent
        if measured.value is not None and measured.share_percent
        else None,
    )


HARDWARE = Chart(
    name="03_hardware_performance",
    title="Hardware",
    needs="a trial of suite hardware",
    command="inv bench --suite=hardware",
    gather=gather,
    is_folded=True,
)
