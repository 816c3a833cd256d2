"""A document as Markdown, report.md, for reading in a repository. Figures are linked from its folder figures/."""

from collections.abc import Iterator, Sequence

from reports import formatting
from reports.document import Answers, Document, Part, Picture, Section, Table, Text

_md = formatting.markdown


def render(document: Document) -> str:
    parts = [f"# {_md(document.headline)}", *map(_md, document.notes)]
    parts += [f"{_md(purpose)}: `{command}`" for purpose, command in document.commands]
    if document.tiles:
        parts.append(_rows(("", "", ""), [(tile.name, tile.value, tile.detail) for tile in document.tiles]))
    parts += [f"> **{_md(doubt)}**" for doubt in document.doubts[:1]]
    parts += [_items(document.doubts[1:])] if document.doubts[1:] else []
    parts += map(_md, document.results)
    parts += [_rows(("", ""), document.facts)] if document.facts else []
    for section in document.sections:
        parts += _section(section)
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> Iterator[str]:
    yield f"## {_md(section.title)}"
    for part in section.parts:
        yield from _part(part)


def _part(part: Part) -> Iterator[str]:
    """Yield the blocks of a part."""
    match part:
        case Text():
            yield from [_items(part.items)] if part.is_list else map(_md, part.items)
        case Table():
            yield from _table(part)
        case Picture():
            yield from (f"### {_md(part.title)}", _md(part.caption), f"![{_md(part.alt)}](figures/{part.name}.png)")
        case Answers():
            yield from (f"> {_md(part.prompt)}", _rows(("", ""), part.items))


def _table(table: Table) -> Iterator[str]:
    if table.caption:
        yield _md(table.caption)
    cells = [["" if cell is None else cell.text for cell in row.cells] for row in table.shown]
    yield _rows([column.label for column in table.columns], cells)
    if table.n_omitted:
        yield _md(f"{formatting.count(table.n_omitted, 'more row is', 'more rows are')} in {table.file}.")


def _items(items: Sequence[str]) -> str:
    return "\n".join(f"- {_md(item)}" for item in items)


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(map(_md, head)), ["---"] * len(head), *(list(map(_md, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
