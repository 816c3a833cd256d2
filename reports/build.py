"""Make a run's report: read the folder, sum it up, draw, and write results/<run-id>/report/.

Every file is replaced atomically and index.html last, so that a page never shows figures or numbers newer than
itself for long, and an interrupted report leaves the previous page in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.result import End, write_atomic
from reports import html, markdown, measurements, tables
from reports.figures import CHARTS, style
from reports.html import Picture
from reports.load import REPORT_FOLDER, Missing, Rejected, ReportError, Run, load
from reports.prices import PriceError, Pricing
from reports.summarize import summarize
from reports.summary import Other, Row, Summary

FIGURES_FOLDER = "figures"
INDEX_FILE = "index.html"


@dataclass(frozen=True, kw_only=True)
class ReportSummary:
    """What a caller shows of a finished report. `exit_code` is 1 unless every planned trial succeeded."""

    run_id: str
    index: Path
    files: tuple[Path, ...]
    finding: str
    baseline: str
    profile_note: str | None
    cautions: tuple[str, ...]
    rows: tuple[Row, ...]
    others: tuple[Other, ...]
    counts: dict[End, int]
    planned: int
    missing: tuple[Missing, ...]
    rejected: tuple[Rejected, ...]
    exit_code: int


def build(run_folder: Path, *, pricing: Pricing | None = None) -> ReportSummary:
    """Write the report of results/<run-id> and say what is in it.

    Raises ReportError, with nothing written, when run.json cannot be trusted or the price cannot be used; also when
    the report's folder cannot be written.
    """
    run = load(run_folder)
    try:
        summary = summarize(run, pricing)
    except PriceError as error:
        raise ReportError(str(error)) from None
    pictures, figures = _draw(summary, run)
    contents = {f"{FIGURES_FOLDER}/{name}": content for name, content in figures.items()} | {
        "summary.json": tables.summary_json(summary, run),
        "summary.csv": tables.summary_csv(summary),
        "measurements.csv": measurements.to_csv(run.measurements),
        "report.md": markdown.render(summary, pictures).encode(),
        INDEX_FILE: html.render(summary, run, pictures).encode(),
    }
    folder = run_folder / REPORT_FOLDER
    files = _write(folder, contents)
    return ReportSummary(
        run_id=summary.record.run_id,
        index=folder / INDEX_FILE,
        files=files,
        finding=summary.finding,
        baseline=summary.baseline,
        profile_note=summary.profile_note,
        cautions=summary.cautions,
        rows=summary.rows,
        others=summary.others,
        counts=summary.counts,
        planned=len(summary.record.planned),
        missing=summary.missing,
        rejected=summary.rejected,
        exit_code=summary.exit_code,
    )


def _draw(summary: Summary, run: Run) -> tuple[list[Picture], dict[str, bytes]]:
    """Every chart for the page, and its files; none where nothing was measured."""
    pictures: list[Picture] = []
    files: dict[str, bytes] = {}
    if not summary.measured_rows:
        return pictures, files
    with style.drawing():
        for chart in CHARTS:
            figure = chart.draw(summary, run, style.WIDE)
            wide = style.svg(figure)
            files[f"{chart.name}.png"] = style.png(figure)
            files[f"{chart.name}.svg"] = wide
            narrow = style.svg(chart.draw(summary, run, style.NARROW))
            pictures.append(
                Picture(
                    name=chart.name,
                    title=chart.title,
                    wide_svg=style.inline_svg(wide, f"w{chart.name[:2]}"),
                    narrow_svg=style.inline_svg(narrow, f"n{chart.name[:2]}"),
                    caption=chart.caption(summary),
                    alt=chart.alt(summary),
                )
            )
    return pictures, files


def _write(folder: Path, contents: dict[str, bytes]) -> tuple[Path, ...]:
    """Write `contents` (relative name -> bytes) in order, then remove figures of an earlier report that are no more."""
    path = folder
    try:
        (folder / FIGURES_FOLDER).mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            path = folder / name
            write_atomic(path, content)
        for path in sorted((folder / FIGURES_FOLDER).iterdir()):
            if f"{FIGURES_FOLDER}/{path.name}" not in contents and path.suffix in (".png", ".svg"):
                path.unlink()
    except OSError as error:
        raise ReportError(f"{path}: cannot be written: {error.strerror}") from None
    return tuple(folder / name for name in contents)
