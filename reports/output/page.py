"""The page of a report: one self-contained HTML file without a script, readable offline, on a phone and on paper.

All text of a document (names, reasons, answers, paths) is escaped by jinja2; only our own style sheet, and figures
whose texts matplotlib escaped, are inserted verbatim. The page's policy forbids scripts and requests.
"""

import functools
import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from reports import formatting
from reports.document import Document, Picture

INDEX_FILE = "index.html"
_DATE = re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}\b")
_COMMAND = re.compile(r"`((?:inv |--|pip )[^`]+)`")
_TEMPLATES = Path(__file__).parent / "templates"


def render(document: Document) -> str:
    """Render a document."""
    css = Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    return formatting.escape_text(_template().render(d=document, css=css))


@functools.cache
def _template() -> jinja2.Template:
    """Return the template, compiled once per process: compiling takes longer than rendering."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "kind": lambda part: type(part).__name__,
        "count": formatting.count,
        "svg": _label_svg,
        "inline": _mark_up,
    }
    return environment.get_template("page.html.j2")


def _mark_up(text: str) -> Markup:
    """Escape a text; wrap each command in a code element and each date, `2026-11-24`, in one without line breaks."""
    marked = _COMMAND.sub(r"<code>\1</code>", str(escape(text)).replace(" %", "\u00a0%"))
    return Markup(_DATE.sub(r"<time>\g<0></time>", marked))  # noqa: S704 - escaped before


def _label_svg(picture: Picture) -> Markup:
    """Return the drawing with its text alternative."""
    label = escape(f"{picture.title}. {picture.alt}".removeprefix(". "))
    svg = picture.inline_svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return Markup(svg)  # noqa: S704 - matplotlib escaped the texts in it
