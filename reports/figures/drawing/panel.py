"""What a panel of rows shows, as values: a mark a row, each with its words."""

from dataclasses import dataclass

from reports.figures.drawing.palette import OTHER_TONE


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One row's value as a bar or a dot, in the panel's unit, with its words; None where there is no value.

    `published` are the same quantity's published values, drawn as hollow diamonds; `words` say them, too. `limit` is a
    ceiling of this row, drawn as an upright line.
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
    """One quantity over the figure's rows. `kind` is "bars" or "dots"; dots may stand on a logarithmic axis.

    `at` is a dashed upright line through all rows (no change, a capacity), which the title explains; `limits` are the
    axis's, where panels beside each other share one; `band` is a range behind the marks. A panel that is `wide_only` is
    left out on a narrow sheet.
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
