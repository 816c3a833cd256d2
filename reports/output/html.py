"""HTML page of the report: one self-contained file, readable offline, without its script, on a phone and on paper.

All text from a run (names, reasons, paths) is escaped by jinja2; only our own style sheet and script, and figures whose
texts matplotlib escaped, are inserted verbatim. The page's policy forbids all other scripts and all requests.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from reports import formatting
from reports.figures.drawing.layout import Chart, Picture
from reports.output import methods_text
from reports.read.run import Run
from reports.summary import text, warnings
from reports.summary import text as text_module
from reports.summary.summary import ConfigurationRow, Summary, group_failures, group_missing
from reports.summary.warnings import MAX_SHOWN

INDEX_FILE = "index.html"
_DATE = re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}\b")
_COMMAND = re.compile(r"`((?:inv |--)[^`]+)`")
_TEMPLATES = Path(__file__).parent / "templates"
# Row limits of the page's tables; summary.json has all rows.
MAX_ROWS, MAX_RAW_ROWS, MAX_FAILURES = 400, 500, 200

# Text first, then numbers; reasons are in the list of failures.
_RAW_COLUMNS = (
    *("trial_id", "configuration", "kind", "worker", "status"),
    *("attempt", "n_steps", "n_measurements"),
    *("step_time_sec", "samples_per_sec", "tokens_per_sec", "useful_tokens_per_sec", "padding_percent"),
    *("first_loss", "last_loss", "peak_vram_bytes", "peak_rss_bytes"),
    *("load_time_sec", "wall_time_sec", "started_at"),
)


def render(
    summary: Summary,
    run: Run,
    pictures: Sequence[Picture],
    skipped: Sequence[Chart] = (),
    *,
    refresh_sec: int | None = None,
) -> str:
    """Render index.html. `refresh_sec` makes the page reload itself, for a run in progress."""
    recommendation = text_module.recommendation_text(summary)
    script = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    return _template().render(
        s=summary,
        rows=_table_rows(summary),
        failures=group_failures(summary.failures),
        missing=group_missing(summary.missing),
        max_failures=MAX_FAILURES,
        max_warnings=MAX_SHOWN,
        run=summary.record,
        recommendation=text_module.without_basis(recommendation),
        interval_basis=text_module.ONE_PROCESS_BASIS if text_module.has_basis(recommendation) else "",
        finding=text_module.without_basis(summary.finding),
        does_not_fit=warnings.describe_unfit(summary.rows, summary.others, summary.baseline),
        recommended=text.recommended_label(summary),
        train_command=text.train_command(summary),
        tiles=text.tiles(summary),
        costs=text.costs(summary),
        billed=text.billed_time(summary),
        energy=text.energy_sentence(summary),
        interval_note=methods_text.interval_mark_note(summary),
        css=Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        policy=_content_security_policy(script),
        refresh_sec=refresh_sec,
        facts=methods_text.facts(summary),
        method=methods_text.paragraphs(summary),
        pictures=pictures,
        skipped=skipped,
        sections=[(name, list(group)) for name, group in groupby(summary.measurements, lambda table: table.title)],
        trial_columns=_RAW_COLUMNS,
        trials=[
            [(_format_cell(value), _sort_key(value)) for value in row]
            for row in run.trials[list(_RAW_COLUMNS)].head(MAX_RAW_ROWS).itertuples(index=False, name=None)
        ],
        n_omitted_trials=max(0, len(run.trials) - MAX_RAW_ROWS),
    )


@functools.cache
def _template() -> jinja2.Template:
    """Return the page's template, compiled once per process: compiling takes longer than rendering."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": formatting.number,
        "estimate_number": lambda value, interval: formatting.number(value, formatting.estimate_decimals(interval)),
        "ratio_number": lambda value, interval: formatting.number(
            value, formatting.ratio_decimals(interval.low, interval.high)
        ),
        "interval_mark": formatting.interval_mark,
        "first_n": formatting.first_n,
        "count": formatting.count,
        "memory": _format_memory,
        "statuses": _format_statuses,
        "label_svg": _label_svg,
        "commands": _mark_commands,
        "dates": _mark_dates,
    }
    return environment.get_template("page.html.j2")


def _table_rows(summary: Summary) -> tuple[ConfigurationRow, ...]:
    """Return the configurations of the page's table: all, or the baseline and the fastest."""
    ordered = text.recommended_first(summary)
    if len(ordered) <= MAX_ROWS:
        return ordered
    fastest = sorted(summary.rows, key=lambda row: (not row.is_baseline, -row.useful_rate))[:MAX_ROWS]
    labels = {row.label for row in fastest}
    return tuple(row for row in ordered if row.label in labels)


def without_refresh(page: str) -> str:
    """Remove from a page what `refresh_sec` added."""
    page = re.sub(r'<meta http-equiv="refresh" content="\d+">\n', "", page, count=1)
    return re.sub(r"<!-- refresh -->.*?<!-- /refresh -->", "", page, count=1, flags=re.DOTALL)


def _content_security_policy(script: str) -> str:
    """Make the Content-Security-Policy: allow only our own script; nothing is fetched or sent."""
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _mark_dates(text: str) -> Markup:
    """Wrap each date, `2026-11-24`, in an element without line breaks."""
    return Markup(_DATE.sub(r"<time>\g<0></time>", str(escape(text))))  # noqa: S704 - escaped before


def _mark_commands(text: str) -> Markup:
    """Wrap each command, `inv bench`, in a code element."""
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


def _label_svg(picture: Picture, width: str) -> Markup:
    """Return the drawing for `wide` or `narrow` screens, with its text alternative."""
    opening = f'<svg class="{width}" role="img" aria-label="{escape(f"{picture.title}. {picture.alt}")}"'
    svg = picture.wide_svg if width == "wide" else picture.narrow_svg
    return Markup(svg.replace("<svg", opening, 1))  # noqa: S704 - matplotlib escaped the texts in it


def _sort_key(value: object) -> float | str | None:
    """Return a number to sort by, empty if unknown; None for text, which is sorted as displayed."""
    if _is_unknown(value):
        return ""
    return float(value) if isinstance(value, (int, float)) else None


def _format_memory(row: ConfigurationRow) -> str:
    return formatting.number(None if row.peak_bytes is None else row.peak_bytes / 1e9)


def _format_statuses(row: ConfigurationRow) -> str:
    ends = [f"{amount} {end.value}" for end, amount in row.ends.items()]
    return ", ".join([*ends, f"{row.missing} missing"] if row.missing else ends)


def _format_cell(value: object) -> str:
    if _is_unknown(value):
        return ""
    if isinstance(value, float):
        return formatting.number(value, max(2, formatting.significant_decimals(value)))
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _is_unknown(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value))
