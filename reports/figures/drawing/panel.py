"""Data of a panel of rows: one mark per row, each with its text."""

from dataclasses import dataclass

from reports.figures.drawing.palette import OTHER_TONE


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One row's value, drawn as a bar or a dot in the panel's unit, with its text; `value` is None if unknown.

    `published` are published values of the same quantity, drawn as hollow diamonds; `text` contains them too.
    `limit` is a limit of this row, drawn as a vertical line.
    """

    value: float | None
    text: str
    low: float | None = None
    high: float | None = None
    tone: str = OTHER_TONE
    is_hollow: bool = False
    published: tuple[float, ...] = ()
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One quantity over the figure's rows. `kind` is "bars" or "dots"; dots may use a logarithmic axis (`log`).

    `reference` is a dashed vertical line through all rows (no change, a capacity), which the title explains. `limits`
    are the limits of an axis that several panels share. `band` is a range behind the marks. A `wide_only` panel is left
    out on a narrow sheet.
    """

    title: str
    marks: tuple[Mark, ...]
    kind: str = "bars"
    log: bool = False
    reference: float | None = None
    limits: tuple[float, float] | None = None
    band: tuple[float, float] | None = None
    wide_only: bool = False


@dataclass(frozen=True, kw_only=True)
class MarkGroup:
    """Panels over the same named rows."""

    names: tuple[str, ...]
    panels: tuple[Panel, ...]
