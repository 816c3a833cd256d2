"""Tests of the version and of its section in the changelog."""

import datetime
import re

from bench.records.version import VERSION
from tests.support.paths import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def test_every_version_has_a_date_and_an_upgrade_note() -> None:
    sections = re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]
    titles = [section.partition("\n")[0] for section in sections]
    released = [title.split(" - ") for title in titles if title != "Unreleased"]
    assert released[0][0] == VERSION
    versions = [tuple(map(int, version.split("."))) for version, _ in released]
    dates = [datetime.date.fromisoformat(date) for _, date in released]
    assert (versions, dates) == (sorted(versions, reverse=True), sorted(dates, reverse=True))
    assert [title for title, section in zip(titles, sections, strict=True) if "**Upgrade.**" not in section] in (
        [titles[-1]],
        ["Unreleased", titles[-1]],
    )


def test_each_promise_names_tests_that_exist() -> None:
    promised = re.findall(r"`(tests/[\w/.]+)::(\w+)`", (ROOT / "docs" / "compatibility.md").read_text())
    assert len(promised) > 5
    for path, name in promised:
        assert f"def {name}(" in (ROOT / path).read_text(), name
