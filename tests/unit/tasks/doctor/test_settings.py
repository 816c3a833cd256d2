"""`inv settings`: values, sources and explanations."""

import pytest

from tasks.doctor.settings_in_force import show_settings
from tasks.errors import UsageError
from tasks.settings.sections import SETTINGS
from tests.support.answers import print_answer


def shown(context, name=None, *, changed=False):
    return {row["name"]: row for row in show_settings(context, name, changed=changed).data["settings"]}


def test_every_setting_has_its_value_source_and_comment(context):
    rows = shown(context())
    assert list(rows) == [".".join(keys) for keys in SETTINGS]
    assert all(row["meaning"] and row["expected"] and row["source"].startswith("invoke.yaml:") for row in rows.values())
    size = rows["fleet.size"]
    assert size["variable"] == "INVOKE_FLEET_SIZE"


def test_a_changed_setting_names_its_source(context, capsys, monkeypatch):
    monkeypatch.setenv("INVOKE_FLEET_MAX_ATTEMPTS", "7")
    (row,) = shown(context(), changed=True).values()
    assert (row["name"], row["value"], row["is_default"]) == ("fleet.max_attempts", 7, False)
    assert row["source"] == "environment INVOKE_FLEET_MAX_ATTEMPTS"
    print_answer(show_settings(context(), "fleet.max_attempts", changed=False))
    assert row["meaning"] in capsys.readouterr().out


def test_a_section_has_only_its_settings(context):
    assert set(shown(context(), "fleet.local")) == {"fleet.local.folder", "fleet.local.threads"}


@pytest.mark.parametrize("name", ["flet.size", "fleet.sice", "no-such-thing", "fleet.", "", "fleet.size.more"])
def test_an_unknown_name_is_refused(context, name):
    with pytest.raises(UsageError):
        show_settings(context(), name, changed=False)
