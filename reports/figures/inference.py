"""Figure 05, inference: generated tokens per second and time to the first, over batches, by precision and path."""

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from reports import formatting
from reports.figures.drawing import lines as line_drawing
from reports.figures.drawing.layout import MARGIN_IN, Chart, Header, Sheet, create_layout, make_header
from reports.figures.drawing.lines import label_points
from reports.figures.drawing.style import ACCENT_TONE, DEEP_TONE, INK, PUBLISHED
from reports.read import measurements, reference_results
from reports.read.measurements import MeasuredValue
from reports.read.run import Run
from reports.summary.summary import Summary

_TONES = {"nf4": DEEP_TONE, "bf16": ACCENT_TONE}
_LINE_STYLES = {"base": ("s", "-"), "adapter": ("D", (0, (1, 1.2)))}
_PRICED_BATCHES = (1, 8, 32)  # batches with a cost in the caption
_PRECISION_NAMES = {"nf4": "4 bit", "bf16": "16 bit"}
_PANEL_HEIGHT_IN = 3.5
_LABEL_WIDTH_IN = 1.15
_MEASURES = (
    ("decode_tokens_per_sec", "Decoded tokens per second", True),
    ("time_to_first_token_sec", "Seconds to the first token", True),
)


@dataclass(frozen=True, kw_only=True)
class InferenceLine:
    """One series: precision and path, and (batch, value, low, high) in ascending batches."""

    precision: str
    path: str
    points: tuple[tuple[int, float, float | None, float | None], ...]

    @property
    def name(self) -> str:
        return f"{_PRECISION_NAMES.get(self.precision, self.precision)}, {self.path}"


@dataclass(frozen=True, kw_only=True)
class InferenceData:
    """Lines of each quantity. `published` is (batch, tokens per second) in 4 bit; `usd_per_hour` is a GPU's price."""

    header: Header
    titles: tuple[str, ...]
    lines: tuple[tuple[InferenceLine, ...], ...]
    published: tuple[tuple[int, float], ...]
    usd_per_hour: float | None = None

    @property
    def caption(self) -> str:
        paths = {line.path for lines in self.lines for line in lines}
        adapter_note = " Dotted: with LoRA adapters on." if "adapter" in paths else ""
        return (
            "Tokens per second of all sequences of a batch together. A line that keeps rising still gains from larger "
            f"batches; where it flattens, the GPU is saturated.{adapter_note}{self._describe_gain()}"
            f"{self._describe_cost()}"
        )

    def _describe_gain(self) -> str:
        """Describe how many times as fast the largest published batch is as the smallest, in 4 bit."""
        if len(self.published) < 2:
            return ""
        (small, slow), (large, fast) = self.published[0], self.published[-1]
        rates = {
            line.name: {batch: rate for batch, rate, _, _ in line.points}
            for line in self.lines[0]
            if line.precision == "nf4"
        }
        gains = [
            f"{name} {known[large] / known[small]:.2f}x"
            for name, known in rates.items()
            if small in known and large in known
        ]
        return f" Batch {large} over batch {small}: {', '.join(gains)} ({fast / slow:.2f}x published)." if gains else ""

    def _describe_cost(self) -> str:
        """Describe the cost of a million generated tokens on each line, if the GPU only generates."""
        if self.usd_per_hour is None:
            return ""
        costs_per_line = [
            f"{line.name}: " + ", ".join(f"${usd:,.2f} at batch {batch}" for batch, usd in costs)
            for line in self.lines[0]
            if (costs := _usd_per_million(line, self.usd_per_hour))
        ]
        return (
            f" A million generated tokens at ${self.usd_per_hour:,.2f} a GPU hour: {'; '.join(costs_per_line)}."
            if costs_per_line
            else ""
        )

    @property
    def alt(self) -> str:
        series = [
            f"{title}: "
            + "; ".join(
                f"{line.name}: "
                + ", ".join(f"batch {batch} {formatting.number(value)}" for batch, value, _, _ in line.points)
                for line in lines
            )
            for title, lines in zip(self.titles, self.lines, strict=True)
        ]
        return ". ".join(series) + "."

    def draw(self, sheet: Sheet) -> Figure:
        shown = [(title, lines) for title, lines in zip(self.titles, self.lines, strict=True) if lines]
        layout = create_layout(self.header, sheet, _PANEL_HEIGHT_IN * (len(shown) if sheet.is_narrow else 1))
        left_in = MARGIN_IN + 0.55
        columns = layout.columns(1 if sheet.is_narrow else len(shown), left_in=left_in, gap_in=0.6)
        for number, (title, lines) in enumerate(shown):
            left, width = columns[0] if sheet.is_narrow else columns[number]
            axes = layout.panel(
                left,
                number * _PANEL_HEIGHT_IN if sheet.is_narrow else 0.0,
                width - _LABEL_WIDTH_IN,
                _PANEL_HEIGHT_IN - 0.12,
            )
            axes.set_title(title)
            _draw_lines(axes, lines, self.published if number == 0 else ())
        return layout.figure


def gather(summary: Summary, run: Run) -> InferenceData | None:
    measured = [
        measurements.select(run, name, "batch", "path", "precision", kind="inference") for name, _, _ in _MEASURES
    ]
    lines = [_lines(value) for value in measured]
    if not lines[0]:
        return None
    published = reference_results.matching_results(run)
    decode_rates = [value for value in measured[0] if value.value is not None]
    lengths = decode_rates[0].context
    return InferenceData(
        header=make_header(
            summary,
            _title(lines[0]),
            measurements.describe_spread(decode_rates),
            f"{lengths.get('prompt_tokens', 'unknown')} prompt tokens, {lengths.get('new_tokens', 'unknown')} new ones",
            f"{PUBLISHED} {published.source}, 4 bit" if published else "",
        ),
        titles=tuple(title for _, title, _ in _MEASURES),
        lines=tuple(map(tuple, lines)),
        published=tuple(sorted(published.inference["nf4"].items())) if published else (),
        usd_per_hour=None if summary.price is None else summary.price.usd_per_gpu_hour,
    )


def _lines(values: list[MeasuredValue]) -> list[InferenceLine]:
    series: dict[tuple[str, str], dict[int, MeasuredValue]] = {}
    for value in values:
        if value.value is not None:
            key = (str(value.context.get("precision")), str(value.context.get("path")))
            series.setdefault(key, {})[int(value.context["batch"])] = value
    return [
        InferenceLine(
            precision=precision,
            path=path,
            points=tuple((batch, value.value or 0.0, value.low, value.high) for batch, value in sorted(points.items())),
        )
        for (precision, path), points in series.items()
    ]


def _usd_per_million(line: InferenceLine, usd_per_hour: float) -> list[tuple[int, float]]:
    """Return (batch, dollars) of the batches in _PRICED_BATCHES."""
    return [
        (batch, usd_per_hour / 3600.0 / rate * 1e6) for batch, rate, _, _ in line.points if batch in _PRICED_BATCHES
    ]


def _title(lines: list[InferenceLine]) -> str:
    fastest = max(((point, line) for line in lines for point in line.points), key=lambda item: item[0][1])
    (batch, rate, _, _), line = fastest
    return f"Generation reaches {formatting.number(rate)} tokens per second at batch {batch} ({line.name} path)"


def _draw_lines(axes: Any, lines: tuple[InferenceLine, ...], published: tuple[tuple[int, float], ...]) -> None:
    batches = sorted({point[0] for line in lines for point in line.points} | {batch for batch, _ in published})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ends = []
    for line in lines:
        tone = _TONES.get(line.precision, INK)
        marker, dash = _LINE_STYLES.get(line.path, ("^", ":"))
        x, y = [point[0] for point in line.points], [point[1] for point in line.points]
        axes.plot(x, y, color=tone, linestyle=dash, marker=marker, markersize=5, linewidth=1.7, zorder=3)
        for batch, _, low, high in line.points:
            line_drawing.draw_vertical_interval(axes, batch, low, high)
        ends.append((x[-1], y[-1], line.name, tone))
    for batch, value in published:
        axes.plot(batch, value, zorder=5, **line_drawing.PUBLISHED_STYLE)
    axes.margins(0.08)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    axes.tick_params(axis="x", length=0)
    line_drawing.format_y_axis(axes, log=True)
    axes.set_xlabel("batch, sequences", labelpad=1)
    height_in = axes.get_position().height * axes.figure.get_figheight()
    line_drawing.label_ends(axes, ends, height_in)
    labels = [(batch, value, f"{formatting.number(value)} published") for batch, value in published]
    label_points(axes, labels, [[point[:2] for point in line.points] for line in lines])


INFERENCE = Chart(
    name="05_inference_performance",
    title="Inference",
    needs="a trial of suite inference",
    command="inv bench --suite=inference",
    gather=gather,
    is_folded=True,
)
