"""Page of `inv data.check`: numbers, lengths, findings, and examples with the text that is trained on marked.

The page is one file without scripts. All text of the data is untrusted and escaped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from bench.records.training import ConversationPreview, DataReport

TEMPLATES = Path(__file__).parents[1] / "output" / "templates"


@dataclass(frozen=True, kw_only=True)
class LengthBin:
    """A bin of the histogram: its upper end, its examples, and its bar's length in percent of the longest."""

    edge: int
    examples: int
    percent: float


def render(report: DataReport, *, numbers: Sequence[str], forecast: Sequence[str], max_example_chars: int) -> str:
    """Render the page. `numbers` and `forecast` are lines of text above the tables."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("data.html.j2").render(
        css=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        report=report,
        numbers=numbers,
        forecast=forecast,
        bins=length_bins(report),
        findings=sorted(report.findings, key=lambda finding: -finding.count),
        examples=[(example, parts_within(example, max_example_chars)) for example in report.shown],
    )


def length_bins(report: DataReport) -> list[LengthBin]:
    """Return the histogram from its first to its last bin with an example."""
    largest = max(report.lengths, default=0)
    filled = [index for index, examples in enumerate(report.lengths) if examples]
    shown = slice(min(filled, default=0), max(filled, default=-1) + 1)
    pairs = zip(report.length_edges[shown], report.lengths[shown], strict=True)
    return [LengthBin(edge=edge, examples=examples, percent=100.0 * examples / largest) for edge, examples in pairs]


def parts_within(example: ConversationPreview, max_chars: int) -> list[tuple[str, bool]]:
    """Return about `max_chars` characters of the example as pairs of text and whether the model trains on it.

    Of a longer example, long texts that are not trained on, such as tools, keep their beginning and end; " ..." stands
    for what is left out.
    """
    is_long = sum(len(part.text) for part in example.parts) > max_chars
    parts, remaining = [], max_chars
    for part in example.parts:
        text = part.text
        if is_long and not part.is_target and len(text) > max_chars // 2:
            text = f"{text[: max_chars // 4]} ... {text[-(max_chars // 4) :]}"
        parts.append((text[:remaining], part.is_target))
        remaining -= len(text)
        if remaining <= 0:
            parts.append((" ...", False))
            break
    return parts
