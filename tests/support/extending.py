"""File lists of docs/extending.md, which tests compare with what a dummy of each kind needed."""

import re

from tests.support.paths import ROOT


def listed_files(title: str) -> tuple[list[str], list[str]]:
    """Return the files of a section's first table, which every such change needs, and those of its other tables."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n?)+", section, re.MULTILINE)
    needed, *optional = [re.findall(r"^\| `([^`]+)`", table, re.MULTILINE) for table in tables]
    return needed, [path for paths in optional for path in paths]
