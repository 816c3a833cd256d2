"""Charts drawn in processes of their own, started early so that their imports overlap with reading the run.

A process gets a chart's name and the little data it gathered, and gives back bytes. Drawing is pure computation held
by Python's lock, so threads would not help. Processes are spawned, never forked: the parent's numeric libraries have
threads of their own, and a fork of those may hang.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from reports.figures.chart import Chart, Picture

MOST_PROCESSES = 4
DRAW_SEC = 120.0  # a figure takes under a second; a process that hangs must not hang the report


class DrawError(RuntimeError):
    """A figure could not be drawn; the message names it and the reason."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A chart and what it gathered."""

    chart: Chart
    data: Any


class Studio:
    """Processes that draw. Made before the run is read; `processes` 0 draws in this one, as tests may want.

    Raises DrawError from `draw`, naming the figure.
    """

    def __init__(self, processes: int | None = None) -> None:
        count = min(MOST_PROCESSES, os.cpu_count() or 1) if processes is None else processes
        self._pool: ProcessPoolExecutor | None = None
        if count > 0:
            self._pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
            self._warm: list[Future[None]] = [self._pool.submit(_warm_up) for _ in range(count)]

    def __enter__(self) -> Studio:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def draw(self, jobs: Iterable[Job]) -> list[Picture]:
        """Pictures in the order of `jobs`."""
        if self._pool is None:
            return [draw_one(job.chart.name, job.data) for job in jobs]
        started = [(job, self._pool.submit(draw_one, job.chart.name, job.data)) for job in jobs]
        pictures = []
        for job, future in started:
            try:
                pictures.append(future.result(timeout=DRAW_SEC))
            except TimeoutError:
                raise DrawError(f"{job.chart.name}: not drawn within {DRAW_SEC:.0f} s") from None
        return pictures


def draw_one(name: str, data: Any) -> Picture:
    """Draw the chart of this name on both sheets."""
    from reports.figures import CHARTS, style
    from reports.figures.board import NARROW, WIDE
    from reports.figures.inline import inline_svg

    chart = next(one for one in CHARTS if one.name == name)
    with style.drawing():
        figure = chart.draw(data, WIDE)
        png, wide = style.png(figure), style.svg(figure)
        narrow = style.svg(chart.draw(data, NARROW))
    return Picture(
        name=name,
        title=chart.title,
        png=png,
        svg=wide,
        wide_svg=inline_svg(wide, f"w{name[:2]}"),
        narrow_svg=inline_svg(narrow, f"n{name[:2]}"),
        caption=chart.caption(data),
        alt=chart.alt(data),
    )


def _warm_up() -> None:
    """What every figure needs, imported while the run is read."""
    for name in ("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "reports.figures"):
        importlib.import_module(name)
