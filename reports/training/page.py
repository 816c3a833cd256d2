"""The files of a training's report: index.html, report.md, steps.csv, evaluations.csv and the drawing of its losses.

The page is one file without scripts. All text from a run is escaped: prompts, answers and reasons are somebody's words.
"""

import csv
import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from bench.records.durable import write_atomic
from bench.records.layout import REPORT_FOLDER
from reports import text
from reports.figures.drawing.inline_svg import inline_svg
from reports.read.run import ReportError
from reports.training import curves, told
from reports.training.told import Told

INDEX_FILE, FIGURE = "index.html", "figures/loss"
HEADS = ("attempt", "leader", "workers", "goes on from step", "seconds lost", "dollars", "ended because")
CSS = Path(__file__).parents[1] / "output" / "templates" / "page.css"
_PAGE = jinja2.Environment(autoescape=True).from_string("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>Training {{ run_id }}</title><style>{{ css }}
pre { white-space: pre-wrap; }</style></head><body><main>
<h1>{{ headline }}</h1>
<p>Run {{ run_id }}, profile {{ profile }}.{% if profile == "tiny" %} A small profile: these numbers say nothing about
a GPU.{% endif %}</p>
{% if drawing %}<figure>{{ drawing }}<figcaption>Each step's loss, and the loss of held-out examples with its 95 %
interval over examples.</figcaption></figure>{% endif %}
<table>{% for name, value in lines %}<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>{% endfor %}</table>
<h2>Predicted and actual</h2>
<table><tr><th></th><th>predicted</th><th>actual</th></tr>
{% for row in compared %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</table>
<p>{{ basis }}</p>
{% if held %}<h2>Attempts</h2>
<table><tr>{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr>
{% for row in held %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</table>{% endif %}
{% if answers %}<h2>Answers before and after</h2>
{% for one in answers %}<h3>{{ one.prompt }}</h3><p>before</p><pre>{{ one.before or "not asked" }}</pre>
<p>after</p><pre>{{ one.after or "not asked" }}</pre>{% endfor %}{% endif %}
</main></body></html>
""")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a caller shows of a finished report."""

    index: Path
    headline: str
    lines: Sequence[told.Line]
    compared: Sequence[tuple[str, str, str]]
    has_succeeded: bool


def build(run_folder: Path) -> Report:
    """Write the report of a training. Raises ReportError."""
    found = told.read(run_folder)
    drawn = curves.draw(found)
    contents = {
        **({} if drawn is None else {f"{FIGURE}.png": drawn[0], f"{FIGURE}.svg": drawn[1]}),
        "steps.csv": _csv(_steps(found)),
        "evaluations.csv": _csv([dataclasses.asdict(one) for one in found.record.evaluations]),
        "report.md": _markdown(found).encode(),
        INDEX_FILE: _html(found, None if drawn is None else drawn[1]).encode(),
    }
    folder = run_folder / REPORT_FOLDER
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_atomic(folder / name, content)
    except OSError as error:
        raise ReportError(f"{folder}: cannot be written: {error.strerror}") from None
    return Report(
        index=folder / INDEX_FILE,
        headline=told.headline(found),
        lines=told.lines(found),
        compared=told.compared(found),
        has_succeeded=found.has_succeeded,
    )


def _html(found: Told, svg: bytes | None) -> str:
    return _PAGE.render(
        css=Markup(CSS.read_text(encoding="utf-8")),  # noqa: S704 - our own file
        run_id=found.run.run_id,
        profile=found.run.profile,
        headline=told.headline(found),
        drawing=None if svg is None else Markup(inline_svg(svg, "loss")),  # noqa: S704 - matplotlib escaped its texts
        lines=told.lines(found),
        compared=told.compared(found),
        basis=_basis(found),
        heads=HEADS,
        held=_attempts(found),
        answers=found.record.answers,
    )


def _markdown(found: Told) -> str:
    rows = [f"| {text.markdown(name)} | {text.markdown(value)} |" for name, value in told.lines(found)]
    both = [f"| {name} | {before} | {after} |" for name, before, after in told.compared(found)]
    parts = [
        f"# {text.markdown(told.headline(found))}",
        f"Run {found.run.run_id}, profile {found.run.profile}.",
        "\n".join(["| | |", "|---|---|", *rows]),
        "\n".join(["| | predicted | actual |", "|---|---|---|", *both]),
        text.markdown(_basis(found)),
    ]
    return "\n\n".join(parts) + "\n"


def _basis(found: Told) -> str:
    return f"The time was {found.foreseen.get('basis', 'not predicted')}."


def _attempts(found: Told) -> list[tuple[str, ...]]:
    return [
        (
            str(one.number),
            one.worker,
            str(one.workers),
            "-" if one.step is None else f"{one.step:,}",
            text.number(one.lost_sec) if one.lost_sec is not None else "-",
            "-" if one.usd is None else f"${one.usd:.4f}",
            one.reason or "-",
        )
        for one in found.held
    ]


def _steps(found: Told) -> list[dict[str, object]]:
    columns = dataclasses.asdict(found.record.steps)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _csv(rows: Sequence[dict[str, object]]) -> bytes:
    """Numbers alone, so that no cell can be a formula."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()
