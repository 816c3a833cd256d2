"""Drawing of charts in several processes, including this one; the others start while the run is still being read.

A process gets the little data that a chart gathered and returns bytes. Drawing is pure computation under Python's
global lock, so threads would not help. Processes are spawned, not forked: numeric libraries start threads, and a fork
of those may hang. Each spends a second of processor time on imports, as much as three figures, so there are few, and
this process draws what the others have not begun.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from reports.figures.drawing import style
from reports.figures.drawing.layout import NARROW, WIDE, Chart, Drawing, Picture
from reports.figures.drawing.style import inline_svg

MAX_PROCESSES = 4  # including this one
DRAW_SEC = 120.0  # a figure takes under a second; a process that hangs must not hang the report


class DrawError(RuntimeError):
    """A figure could not be drawn; the message names it and the reason."""


@dataclass(frozen=True, kw_only=True)
class RenderJob:
    """A chart with its gathered drawing."""

    chart: Chart
    drawing: Drawing


class FigurePool(contextlib.AbstractContextManager["FigurePool"]):
    """Drawing processes: at most MAX_PROCESSES, and one per core. Create it before the run is read."""

    def __init__(self) -> None:
        self._others = min(MAX_PROCESSES, os.cpu_count() or 1) - 1
        self._pool: ProcessPoolExecutor | None = None
        if self._others > 0:
            self._pool = ProcessPoolExecutor(
                self._others, mp_context=multiprocessing.get_context("spawn"), initializer=_exit_with_parent
            )
            for _ in range(self._others):
                self._pool.submit(_warm_up)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        if kind is DrawError:  # a process hangs, and the pool would wait for it
            for process in list(self._pool._processes.values()):
                process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def draw(self, jobs: Iterable[RenderJob]) -> list[Picture]:
        """Draw `jobs` and return pictures in their order. Jobs of a process that died are drawn here; raises DrawError.

        Submitted jobs are not cancelled: if a process dies after that, Python 3.11's pool never completes its other
        futures (python/cpython#107219).
        """
        jobs = list(jobs)
        waiting = deque(jobs)
        drawn_here: dict[str, Picture] = {}
        submitted: dict[str, Future[Picture]] = {}
        while waiting:
            while len(waiting) > 1 and sum(not future.done() for future in submitted.values()) <= self._others:
                future = self._submit(waiting[0])
                if future is None:
                    break
                submitted[waiting.popleft().chart.name] = future
            job = waiting.pop()
            drawn_here[job.chart.name] = draw_picture(job.chart.name, job.chart.title, job.drawing)
        return [drawn_here.get(job.chart.name) or _await_picture(job, submitted[job.chart.name]) for job in jobs]

    def _submit(self, job: RenderJob) -> Future[Picture] | None:
        """Submit a job; None if there is no working pool."""
        with contextlib.suppress(BrokenProcessPool):
            if self._pool is not None:
                return self._pool.submit(draw_picture, job.chart.name, job.chart.title, job.drawing)
        return None


def _await_picture(job: RenderJob, future: Future[Picture]) -> Picture:
    try:
        return future.result(timeout=DRAW_SEC)
    except TimeoutError as error:
        raise DrawError(f"{job.chart.name}: not drawn within {DRAW_SEC:.0f} s") from error
    except BrokenProcessPool:  # killed, most likely for memory; it may fit in this process
        return draw_picture(job.chart.name, job.chart.title, job.drawing)


def draw_picture(name: str, title: str, drawing: Drawing) -> Picture:
    """Draw a figure on both sheets."""
    with style.figure_style():
        figure = drawing.draw(WIDE)
        png, wide_svg = style.to_png(figure), style.to_svg(figure)
        narrow_svg = style.to_svg(drawing.draw(NARROW))
    return Picture(
        name=name,
        title=title,
        finding=drawing.header.title,
        png=png,
        svg=wide_svg,
        wide_svg=inline_svg(wide_svg, f"w{name[:2]}"),
        narrow_svg=inline_svg(narrow_svg, f"n{name[:2]}"),
        caption=drawing.caption,
        alt=drawing.alt,
    )


def _exit_with_parent() -> None:
    """End this process when the one that draws the report dies, also by SIGKILL; the pool's queue would wait on."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()


def _warm_up() -> None:
    """Import every figure's dependencies while the run is read."""
    for name in ("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "reports.figures"):
        importlib.import_module(name)
