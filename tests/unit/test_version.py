"""Tests of the version and of its section in the changelog."""

import datetime
import re

from bench.records.version import SCHEMA_VERSION, VERSION
from tests.support.paths import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def test_every_version_has_a_date_and_an_upgrade_note() -> None:
    sections = re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]
    titles = [section.partition("\n")[0].split(" - ") for section in sections]
    released = [(version, date) for version, date in titles if date != "unreleased"]
    assert titles[0][0] == VERSION
    assert int(VERSION.partition(".")[0]) == SCHEMA_VERSION
    versions = [tuple(map(int, version.split("."))) for version, _ in titles]
    dates = [datetime.date.fromisoformat(date) for _, date in released]
    assert (versions, dates) == (sorted(versions, reverse=True), sorted(dates, reverse=True))
    assert [section for section in sections[:-1] if "**Upgrade.**" not in section] == []
