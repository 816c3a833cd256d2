"""The page: one self-contained file that opens offline, without a script, on a phone and on paper.

Everything from a run (names, reasons, paths) is escaped by jinja2; only our own style sheet and the figures, whose
texts matplotlib escaped, go in as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from reports import method, text
from reports.load import Run
from reports.summary import Row, Summary

_TEMPLATES = Path(__file__).parent / "templates"

# The first five are words, the others numbers; reasons stand in the list of failures.
_RAW_COLUMNS = (
    "trial_id",
    "configuration",
    "kind",
    "worker",
    "status",
    "attempt",
    "n_steps",
    "n_measurements",
    "step_time_sec",
    "samples_per_sec",
    "tokens_per_sec",
    "useful_tokens_per_sec",
    "padding_percent",
    "first_loss",
    "last_loss",
    "peak_vram_bytes",
    "peak_rss_bytes",
    "load_time_sec",
    "wall_time_sec",
    "started_at",
)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawn chart as the page takes it: inline SVG for wide and for narrow screens, its caption and its alt text."""

    name: str
    title: str
    wide_svg: str
    narrow_svg: str
    caption: str
    alt: str


def render(summary: Summary, run: Run, pictures: Sequence[Picture]) -> str:
    """index.html's text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "three": text.number,
        "places": lambda value, like: text.number(value, text.decimals(like)),
        "fixed": text.number,
        "some": text.some,
        "memory": _memory,
        "ends": _ends,
    }
    return environment.get_template("page.html.j2").render(
        s=summary,
        run=summary.record,
        css=Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        facts=method.facts(summary),
        method=method.paragraphs(summary),
        charts=[_placed(picture) for picture in pictures],
        sections=[(name, list(group)) for name, group in groupby(summary.measurements, lambda one: one.section)],
        trial_columns=_RAW_COLUMNS,
        trials=[
            [_cell(value) for value in row] for row in run.trials[list(_RAW_COLUMNS)].itertuples(index=False, name=None)
        ],
    )


def _placed(picture: Picture) -> dict[str, object]:
    return {
        "wide": _labelled(picture.wide_svg, "wide", picture),
        "narrow": _labelled(picture.narrow_svg, "narrow", picture),
        "caption": picture.caption,
    }


def _labelled(svg: str, shape: str, picture: Picture) -> Markup:
    opening = f'<svg class="{shape}" role="img" aria-label="{escape(f"{picture.title}. {picture.alt}")}"'
    return Markup(svg.replace("<svg", opening, 1))  # noqa: S704 - matplotlib escaped the texts in it


def _memory(row: Row) -> str:
    used = row.peak_vram_bytes if row.peak_vram_bytes is not None else row.peak_rss_bytes
    return text.number(None if used is None else used / 1e9)


def _ends(row: Row) -> str:
    told = [f"{amount} {end.value}" for end, amount in row.ends.items()]
    return ", ".join([*told, f"{row.missing} missing"] if row.missing else told)


def _cell(value: object) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
        return ""
    if isinstance(value, float):
        return text.number(value, max(2, text.decimals(value)))
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
