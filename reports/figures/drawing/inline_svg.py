"""SVG embedded in the page: with unique ids, the page's colours and fonts, and a third of its size."""

import re
from collections import Counter

from reports.figures.drawing.style import PAGE_COLOURS, PAGE_FONT

_MIN_USES = 4  # with fewer uses, a class is longer than the repeated style


def inline_svg(svg: bytes, prefix: str) -> str:
    """Shrink matplotlib's stand-alone SVG for embedding; `prefix` makes its ids and classes unique in the page."""
    body = svg.decode()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    # Without a size in points, the drawing fills its column on the page and keeps its aspect ratio.
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
    """Remove what has no visible effect: hundredths of a point, rotations by zero, fonts that the page sets."""
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    tag = tag.replace(f"font-family: {PAGE_FONT}; ", "").replace(PAGE_FONT, "sans-serif")
    return " ".join(tag.split())


def _prefix_ids(body: str, prefix: str) -> str:
    """Prefix the ids that are referred to, and drop the others."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))

    def renamed(match: re.Match[str]) -> str:
        return f' id="{prefix}-{match[1]}"' if match[1] in used else ""

    body = re.sub(r' id="([^"]+)"', renamed, body)
    return re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{prefix}-", body)


def _share_styles(body: str, prefix: str) -> str:
    """Move styles that many elements share into a style sheet inside the drawing."""
    uses = Counter(re.findall(r' style="([^"]*)"', body))
    name_of = {style: f"{prefix}{number}" for number, style in enumerate(uses) if uses[style] >= _MIN_USES}

    def named(match: re.Match[str]) -> str:
        return f' class="{name_of[match[1]]}"' if match[1] in name_of else match[0]

    body = re.sub(r' style="([^"]*)"', named, body)
    sheet = "".join(f".{name}{{{style}}}" for style, name in name_of.items())
    return body.replace(">", f"><style>{sheet}</style>", 1) if sheet else body
