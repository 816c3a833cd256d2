"""An SVG that can stand inside the page: ids of its own, the page's colours and fonts, and a third of its size."""

import re
from collections import Counter

from reports.figures.drawing.palette import PAGE_COLOURS
from reports.figures.drawing.style import PAGE_FONT

_MIN_USES = 4  # a look that fewer elements share costs more as a class than in place


def inline_svg(svg: bytes, prefix: str) -> str:
    """`drawn` (matplotlib's stand-alone SVG) without prolog; `prefix` makes its ids and classes unique in the page."""
    body = svg.decode()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    # The drawing has its natural size in points; on the page it fills its column and keeps its proportions.
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    body = re.sub(r"<[^>]+>", lambda tag: _shorten_tag(tag.group()), body)
    body = re.sub(r">\s+<", "><", body)
    body = _prefix_ids(body, prefix)
    body = re.sub(r"<g></g>|<g/>", "", body)
    body = _share_styles(body, prefix)
    for colour, variable in PAGE_COLOURS.items():
        body = body.replace(colour, variable)
    return body


def _shorten_tag(tag: str) -> str:
    """A tag without what cannot be seen: hundredths of a point, turns by nothing, fonts that the page sets anyway."""
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    tag = tag.replace(f"font-family: {PAGE_FONT}; ", "").replace(PAGE_FONT, "sans-serif")
    return " ".join(tag.split())


def _prefix_ids(body: str, prefix: str) -> str:
    """Ids that something refers to, prefixed; all others dropped."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))

    def renamed(match: re.Match[str]) -> str:
        return f' id="{prefix}-{match[1]}"' if match[1] in used else ""

    body = re.sub(r' id="([^"]+)"', renamed, body)
    return re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{prefix}-", body)


def _share_styles(body: str, prefix: str) -> str:
    """Looks that many elements share, once in a style sheet inside the drawing."""
    uses = Counter(re.findall(r' style="([^"]*)"', body))
    name_of = {look: f"{prefix}{number}" for number, look in enumerate(uses) if uses[look] >= _MIN_USES}

    def named(match: re.Match[str]) -> str:
        return f' class="{name_of[match[1]]}"' if match[1] in name_of else match[0]

    body = re.sub(r' style="([^"]*)"', named, body)
    sheet = "".join(f".{name}{{{look}}}" for look, name in name_of.items())
    return body.replace(">", f"><style>{sheet}</style>", 1) if sheet else body
