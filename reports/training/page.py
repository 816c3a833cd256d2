"""The files of a training's report: index.html, report.md, settings.json, steps.csv, evaluations.csv and two drawings.

The page is one file without scripts. All text from a run is escaped: prompts, answers and reasons are somebody's words.
"""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from bench.records.atomic_files import write_atomic
from reports import formatting
from reports.figures.drawing.inline_svg import inline_svg
from reports.read.run import NotWritten, report_folder
from reports.training import loss_curves, next_commands, summary, timeline
from reports.training.summary import TrainingReport

INDEX_FILE, LOSS, COURSE = "index.html", "figures/loss", "figures/course"
HEADS = ("attempt", "leader", "workers", "goes on from step", "seconds lost", "dollars", "ended because")
TEMPLATES = Path(__file__).parents[1] / "output" / "templates"
_JINJA = jinja2.Environment(
    autoescape=True, loader=jinja2.FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a caller shows of a finished report."""

    index: Path
    headline: str
    lines: Sequence[summary.SummaryRow]
    compared: Sequence[tuple[str, str, str]]
    has_succeeded: bool


def build(run_folder: Path) -> Report:
    """Write the report of a training. Raises ReportError; NotWritten where its folder cannot be written."""
    found = summary.read(run_folder)
    drawn = {name: each.draw(found) for name, each in ((LOSS, loss_curves), (COURSE, timeline))}
    contents = {
        "steps.csv": _csv(found, _steps(found)),
        "evaluations.csv": _csv(found, [dataclasses.asdict(evaluation) for evaluation in found.record.evaluations]),
        "report.md": _markdown(found).encode(),
        next_commands.SETTINGS_FILE: next_commands.settings(found),
        INDEX_FILE: _html(found, {name: both[1] for name, both in drawn.items() if both is not None}).encode(),
    }
    for name, both in drawn.items():
        if both is not None:
            contents |= {f"{name}.png": both[0], f"{name}.svg": both[1]}
    folder = report_folder(run_folder, "figures")
    try:
        for name, content in contents.items():
            write_atomic(folder / name, content)
    except OSError as error:
        raise NotWritten(folder, error) from None
    return Report(
        index=folder / INDEX_FILE,
        headline=summary.headline(found),
        lines=summary.lines(found),
        compared=summary.compared(found),
        has_succeeded=found.has_succeeded,
    )


def _html(found: TrainingReport, wide: Mapping[str, bytes]) -> str:
    narrow = {LOSS: loss_curves.draw(found, narrow=True), COURSE: timeline.draw(found, narrow=True)}
    drawings = {
        Path(name).name: [_inline(svg, name, "wide"), _inline(narrow[name][1], name, "narrow")]  # type: ignore[index]
        for name, svg in wide.items()
    }
    return _JINJA.get_template("training.html.j2").render(
        css=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        run_id=found.run.run_id,
        profile=found.run.profile,
        headline=summary.headline(found),
        outcome=summary.outcome(found),
        tiles=summary.tiles(found),
        drawings=drawings,
        lines=summary.lines(found),
        compared=summary.compared(found),
        basis=_basis(found),
        commands=next_commands.commands(found),
        data=found.record.data,
        findings=summary.findings(found),
        heads=HEADS,
        held=_attempts(found),
        answers=found.record.answers,
    )


def _inline(svg: bytes, name: str, width: str) -> Markup:
    body = inline_svg(svg, f"{Path(name).name}-{width}").replace("<svg", f'<svg class="{width}"', 1)
    return Markup(body)  # noqa: S704 - matplotlib escaped its texts


def _markdown(found: TrainingReport) -> str:
    rows = [f"| {formatting.markdown(name)} | {formatting.markdown(value)} |" for name, value in summary.lines(found)]
    both = [f"| {name} | {before} | {after} |" for name, before, after in summary.compared(found)]
    parts = [
        f"# {formatting.markdown(summary.headline(found))}",
        f"Run {found.run.run_id}, profile {found.run.profile}. {formatting.markdown(summary.outcome(found))}.",
        "\n".join(["| | |", "|---|---|", *rows]),
        "\n".join(["| | predicted | actual |", "|---|---|---|", *both]),
        formatting.markdown(_basis(found)),
        "\n".join(f"- {what}: `{command}`" for what, command in next_commands.commands(found)),
    ]
    return "\n\n".join(parts) + "\n"


def _basis(found: TrainingReport) -> str:
    return f"Basis of the predicted time: {found.foreseen.get('basis', 'nothing')}."


def _attempts(found: TrainingReport) -> list[tuple[str, ...]]:
    return [
        (
            str(one.number),
            one.worker,
            str(one.workers),
            "-" if one.step is None else f"{one.step:,}",
            formatting.number(one.lost_sec) if one.lost_sec is not None else "-",
            "-" if one.usd is None else f"${one.usd:.4f}",
            one.reason or "-",
        )
        for one in found.held
    ]


def _steps(found: TrainingReport) -> list[dict[str, object]]:
    columns = dataclasses.asdict(found.record.steps)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _csv(found: TrainingReport, rows: Sequence[dict[str, object]]) -> bytes:
    """The rows, with run and configuration first, so that those of two runs can be put together."""
    of = {"run_id": found.run.run_id, "configuration": found.run.planned[0].trial.name}
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=[*of, *(rows[0] if rows else [])], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: formatting.spreadsheet(value) for name, value in {**of, **row}.items()} for row in rows)
    return out.getvalue().encode()
