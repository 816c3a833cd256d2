"""A training setting is declared once, at the record's field: the settings, invoke.yaml and the record agree."""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bench.records import Trial, TrialError
from bench.records.validation import Setting, check_fields, setting, settings_of
from tasks.fleet.declared import declared_values
from tasks.settings.schema import TRAIN_RECORDS, TrainSection, expected_text, train_section

ROOT = Path(__file__).resolve().parents[4]
DECLARED = [declared for record in TRAIN_RECORDS for declared in settings_of(record).values()]


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: declared.name)
def test_invoke_yaml_has_the_declared_help(declared: Setting) -> None:
    text = (ROOT / "invoke.yaml").read_text()
    section = text[text.index("\ntrain:") : text.index("\nbuild:")]
    lines = re.findall(rf"^  {declared.name}: (?P<value>.*?) # (?P<help>.*)$", section, re.MULTILINE)
    assert [line[1] for line in lines] == [declared.help]


def test_a_setting_is_declared_by_one_record_only() -> None:
    names = [declared.name for declared in DECLARED]
    assert len(names) == len(set(names))


@dataclass(frozen=True, kw_only=True)
class Extended:
    """A record with a new setting of each form."""

    clip: float = setting(1.5, "clip there, above 0, at most 9", name="clip_at", gt=0, le=9)
    flavour: str | None = setting(None, "a flavour, or null", choices=("sweet", "sour"))
    rows: int = setting(4, "rows, 1 to 8", stored_default=1, ge=1, le=8)


def test_a_new_setting_needs_its_declaration_alone() -> None:
    section_type = train_section((*TRAIN_RECORDS, Extended))
    section: Any = section_type(clip_at=3.0, flavour="sour")
    assert declared_values(Extended, section) == {"clip": 3.0, "flavour": "sour", "rows": 4}
    assert Extended().rows == 1  # a record stored before the setting existed
    assert expected_text(section_type.model_fields["clip_at"]) == "a number above 0, at most 9"
    assert expected_text(section_type.model_fields["flavour"]) == "one of sweet, sour, or null"


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("clip_at", "clip", 0.0), ("clip_at", "clip", 9.5), ("flavour", "flavour", "bitter"), ("rows", "rows", 0)],
)
def test_the_settings_and_the_record_refuse_the_same_values(name: str, field: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        train_section((Extended,))(**{name: value})
    with pytest.raises(TrialError, match=f"^{field}: expected"):
        check_fields(dataclasses.replace(Extended(), **{field: value}))


def test_the_trial_of_the_defaults_is_valid() -> None:
    values = declared_values(Trial, TrainSection())
    assert Trial(name="a", reason="", suite="s", profile="tiny", model="m", data="d", **values).recipe == "fast"
