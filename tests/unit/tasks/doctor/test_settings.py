"""`inv settings`: values, sources and explanations."""

import json

import pytest

from tasks.doctor.settings import show_settings
from tasks.errors import UsageError
from tasks.settings.schema import LEAVES


def shown(capsys, context, name=None, *, changed=False):
    show_settings(context, name, changed=changed, as_json=True)
    document = json.loads(capsys.readouterr().out)
    return {row["name"]: row for row in document["settings"]}


def test_every_setting_has_its_value_source_and_comment(context, capsys):
    rows = shown(capsys, context())
    assert list(rows) == [".".join(keys) for keys in LEAVES]
    assert all(row["meaning"] and row["expected"] and row["source"].startswith("invoke.yaml:") for row in rows.values())
    size = rows["fleet.size"]
    assert size["variable"] == "INVOKE_FLEET_SIZE"


def test_a_changed_setting_names_its_source_and_what_it_overrides(context, capsys, monkeypatch):
    monkeypatch.setenv("INVOKE_FLEET_MAX_ATTEMPTS", "7")
    (row,) = shown(capsys, context(), changed=True).values()
    assert (row["name"], row["value"], row["is_default"]) == ("fleet.max_attempts", 7, False)
    assert row["source"] == "environment INVOKE_FLEET_MAX_ATTEMPTS"
    show_settings(context(), "fleet.max_attempts", changed=False, as_json=False)
    text = capsys.readouterr().out
    assert "overrides: 2, invoke.yaml:" in text


def test_a_section_has_only_its_settings(context, capsys):
    assert set(shown(capsys, context(), "fleet.local")) == {"fleet.local.folder", "fleet.local.threads"}


@pytest.mark.parametrize("name", ["flet.size", "fleet.sice", "no-such-thing", "fleet.", "", "fleet.size.more"])
def test_an_unknown_name_is_refused(context, name):
    with pytest.raises(UsageError):
        show_settings(context(), name, changed=False, as_json=False)
