"""The page of `inv data.check`: numbers, lengths, findings, and examples with the text that is trained on marked."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.records.training import ConversationPreview, DataReport
from reports.document import Document, MarkedText, Section, Text, paragraph, text_table
from reports.output import page

_BAR_CHARS = 25


@dataclass(frozen=True, kw_only=True)
class LengthBin:
    """A bin of the histogram: its upper end, its examples, and its bar's length in percent of the longest."""

    edge: int
    examples: int
    percent: float


def render(report: DataReport, *, numbers: Sequence[str], forecast: Sequence[str], max_example_chars: int) -> str:
    """Render the page. `numbers` and `forecast` are lines of text above the tables."""
    findings = sorted(report.findings, key=lambda finding: -finding.count)
    rows = [(each.what, f"{each.count:,}", "; ".join(each.places[:3])) for each in findings]
    lengths = [(f"{each.edge:,}", f"{each.examples:,}", _bar(each)) for each in length_bins(report)]
    files = [(file.path, file.kind, f"{file.lines:,}", f"{file.weight:g}", file.sha256[:16]) for file in report.files]
    examples = [
        MarkedText(
            title=f"{example.place}: {example.tokens:,} tokens, {example.targets:,} trained on",
            pieces=tuple(parts_within(example, max_example_chars)),
        )
        for example in report.shown
    ]
    median = f"Median {report.median_length:g} tokens, longest {report.longest:,}."
    marked = paragraph("Marked text is trained on; the rest is context. Control characters are escaped.")
    sections = (
        Section(title="Forecast", parts=(Text(items=tuple(forecast), is_list=True),)),
        *(
            [Section(title="Findings", parts=(text_table(("Finding", "Lines", "First lines"), rows, ("Lines",)),))]
            if rows
            else []
        ),
        Section(title="Examples", parts=(marked, *examples)),
        Section(
            title="Examples by length",
            parts=(paragraph(median), text_table(("Tokens, up to", "Examples", "Share"), lengths, ("Examples",))),
        ),
        Section(
            title="Files",
            parts=(text_table(("File", "Kind", "Lines", "Weight", "SHA-256"), files, ("Lines", "Weight")),),
        ),
    )
    return page.render(
        Document(kicker="training data", headline=numbers[0], notes=tuple(numbers[1:]), sections=sections)
    )


def _bar(length: LengthBin) -> str:
    return "\N{FULL BLOCK}" * round(_BAR_CHARS * length.percent / 100.0) or "\N{LEFT ONE EIGHTH BLOCK}"


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
