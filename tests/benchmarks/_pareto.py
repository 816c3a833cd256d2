"""Speed against held-out loss of each product precision: `python -m tests.benchmarks._pareto IN.json OUT.png`.

IN.json holds the output of `fast_step` and `int8_quality`: ratios of useful tokens a second to the reference's, and
held-out losses by seed. The first point is the reference, paired by seed; the last one is
the fastest. The prototype's points are of an earlier run on other text, one seed or two, and have no interval.
"""

import json
import math
import statistics
import sys
from pathlib import Path

from matplotlib import pyplot

from bench.records.student import quantile
from reports.figures.drawing import style
from reports.figures.drawing.style import ACCENT_TONE, DEEP_TONE, INK

ALLOWED_PERCENT = 0.15


def main(source: str, target: str) -> None:
    document = json.loads(Path(source).read_text())
    base = document["points"][0]["held_out"]
    with style.figure_style():
        figure, axes = pyplot.subplots(figsize=(8.6, 4.6))
        axes.axhspan(-ALLOWED_PERCENT, ALLOWED_PERCENT, color=ACCENT_TONE, alpha=0.10, linewidth=0)
        axes.text(5.07, ALLOWED_PERCENT - 0.02, "allowed: within 0.15 %", color=INK, fontsize=9, va="top", ha="right")
        for point in document["points"]:
            percents = [100 * (own / other - 1) for own, other in zip(point["held_out"], base, strict=True)]
            off, count = statistics.mean(percents), len(percents)
            wide = quantile(0.95, count - 1) * statistics.stdev(percents) / math.sqrt(count)
            axes.errorbar(point["ratio"], off, wide, fmt="o", color=DEEP_TONE, capsize=3, markersize=7)
            offset = {"xytext": (-10, -3), "ha": "right"} if point is document["points"][0] else {"xytext": (8, 6)}
            axes.annotate(point["name"], (point["ratio"], off), textcoords="offset points", fontsize=9, **offset)
        for point in document["prototype"]:
            axes.plot(point["ratio"], point["percent"], "D", mfc="none", color=ACCENT_TONE, markersize=7)
            axes.annotate(
                f"{point['name']} (prototype)",
                (point["ratio"], point["percent"]),
                (10, -3),
                textcoords="offset points",
                fontsize=9,
            )
        axes.set_xlim(1.9, 5.1)
        axes.set_ylim(-0.25, 0.5)
        axes.set_xlabel("useful tokens a second, times the reference's")
        axes.set_ylabel("held-out loss against bf16, %")
        gain = document["points"][-1]["ratio"] / document["points"][0]["ratio"]
        axes.set_title(f"INT8 is {gain:.2f} times as fast as bf16 without a visible loss; FP8 is not", loc="left")
        figure.tight_layout()
        figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
