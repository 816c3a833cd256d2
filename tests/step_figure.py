"""Figure of the README: `python -m tests.step_figure [FILE]` draws docs/figures/steps_h200.png from measured steps.

The steps and their intervals are those of docs/performance.md, which has the commands that measured them.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from reports.figures.drawing import style
from tests.support.paths import ROOT

FILE = ROOT / "docs" / "figures" / "steps_h200.png"
STEP_TOKENS = 8 * 512
STEP = r"([\d.]+) s \[([\d.]+), ([\d.]+)\](?: \| ([\d,]+))?"  # and its tokens a second, if they stand next to it
# A label, and the text before its step in docs/performance.md.
ROWS = (
    ("the published loop\n(another run, 5 % dropout)", r"reference "),
    ("Unsloth, its fastest setting", r"\| Unsloth, use_gradient_checkpointing=False, fused AdamW \| "),
    ("qlora-fleet, bf16", r"\| `fast`, 11 layers held \| "),
    ("qlora-fleet, 8-bit products", r"\| `fast`, INT8 for both products, 19 held \| "),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A bar: tokens per second, with the interval's ends."""

    label: str
    speed: float
    low: float
    high: float


def read_rows(text: str) -> list[Row]:
    """Return the bars from the text of docs/performance.md. Raises ValueError for a row that it lacks."""
    rows = []
    for label, before in ROWS:
        match = re.search(before + STEP, text)
        if match is None:
            raise ValueError(f"docs/performance.md has no step of {label!r}")
        step, low, high = (float(match[number]) for number in (1, 2, 3))
        speed = float(match[4].replace(",", "")) if match[4] else STEP_TOKENS / step
        rows.append(Row(label=label, speed=speed, low=STEP_TOKENS / high, high=STEP_TOKENS / low))
    return rows


def draw(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(9.0, 2.9), dpi=110)
    axes = figure.add_axes((0.25, 0.04, 0.62, 0.72))
    tones = (style.BASELINE_TONE, style.BASELINE_TONE, style.OTHER_TONE, style.DEEP_TONE)
    errors = ([row.speed - row.low for row in rows], [row.high - row.speed for row in rows])
    axes.barh(range(len(rows)), [row.speed for row in rows], xerr=errors, color=tones, height=0.62, capsize=3)
    for number, row in enumerate(rows):
        ratio = f"  {row.speed / rows[1].speed:.2f} x" if number > 1 else ""
        axes.text(row.high + 400, number, f"{row.speed:,.0f}{ratio}", va="center", fontsize=11, color=style.INK)
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=11, color=style.INK)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.text(0.01, 0.9, "QLoRA of a 7B model on one H200: tokens a second", fontsize=14, weight="bold")
    figure.text(
        0.01,
        0.81,
        "8 x 512 tokens a step within 21.5 GiB, NF4, rank 16 on attention; medians with 95 % intervals",
        fontsize=10,
        color=style.MUTED,
    )
    return figure


def main(file: Path = FILE) -> None:
    draw(read_rows((ROOT / "docs" / "performance.md").read_text(encoding="utf-8"))).savefig(file)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
