"""Old names and values of settings: accepted with one line that names the new one."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.settings import load as load_module
from tasks.settings.load import RENAMED, RENAMED_VALUES, Settings, load
from tasks.settings.schema import LEAVES
from tasks.settings.sources import set_value
from tasks.tuning.space import RECIPES
from tests.unit.tasks.settings.test_settings import Make, refusal


@pytest.fixture(autouse=True)
def _print_again() -> None:
    """Forget the lines about old names that other tests have printed."""
    load_module._print_once.cache_clear()


OLD_SETTINGS = {
    "cluster.fss.capacity": "300Gi",
    "cluster.fss.volume_handle": "ocid1.filesystem:10.0.0.5:/export",
    "cluster.ready_within_sec": 60.0,
    "cluster.registry_user": "ns/me",
    "fleet.give_up_after_sec": 30.0,
    "fleet.log_in_within_sec": 20.0,
    "train.answer_tokens": 7,
    "train.gradients": "bf16",
    "train.labels": "all",
    "train.patience": 3,
    "train.prompts": ["hello"],
    "train.validation": 0.25,
    "train.wait": 9.0,
    "train.weights": [0.5],
    "tune.keep_percent": 95,
}


def values_of(loaded: Settings, keys: tuple[str, ...]) -> Any:
    value: Any = loaded
    for key in keys:
        value = getattr(value, key)
    return list(value) if isinstance(value, tuple) else value


def test_the_table_of_old_settings_is_whole() -> None:
    assert {".".join(keys) for keys in RENAMED} == set(OLD_SETTINGS)
    assert set(RENAMED.values()) <= set(LEAVES)
    assert set(RENAMED).isdisjoint(LEAVES)


def text_of(keys: tuple[str, ...], value: Any) -> str:
    """Return a file with one setting in its second line."""
    section, *rest = keys
    return f"{section}:\n  {rest[0]}: {json.dumps({rest[1]: value} if rest[1:] else value)}\n"


@pytest.mark.parametrize("old", OLD_SETTINGS)
def test_each_old_setting_is_accepted_with_one_line_that_names_the_new_one(
    old: str, context: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, value = tuple(old.split(".")), OLD_SETTINGS[old]
    for _ in range(2):  # a command loads its settings more than once
        assert values_of(load(context(text=text_of(keys, value))), RENAMED[keys]) == value
    assert capsys.readouterr().err == f"f.yaml:2: {old} is now {'.'.join(RENAMED[keys])}; rename it there\n"


@pytest.mark.parametrize("source", ["~/.invoke.yaml", "invoke.yaml", "environment"])
def test_an_old_setting_counts_in_every_place(
    source: str, project: Path, context: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("cluster", "fss", "capacity")
    where = f"{source}:2"
    if source == "environment":
        monkeypatch.setenv("INVOKE_CLUSTER_FSS_CAPACITY", "300Gi")
        where = "environment INVOKE_CLUSTER_FSS_CAPACITY"
    else:
        path = project / "invoke.yaml" if source == "invoke.yaml" else project.parent / "home" / ".invoke.yaml"
        path.write_text(text_of(keys, "300Gi"))
    assert load(context()).cluster.volume.capacity == "300Gi"
    assert capsys.readouterr().err.startswith(f"{where}: cluster.fss.capacity is now cluster.volume.capacity; ")


@pytest.mark.parametrize("old", OLD_SETTINGS)
def test_an_old_and_a_new_name_in_one_place_are_refused_in_one_line(old: str, context: Make) -> None:
    keys, document = tuple(old.split(".")), dict[str, Any]()
    new = RENAMED[keys]
    set_value(document, keys, OLD_SETTINGS[old])
    set_value(document, new, OLD_SETTINGS[old])
    message = refusal(context(text=yaml.safe_dump(document)))
    assert re.match(rf"f\.yaml:\d+: {old} is now {'.'.join(new)}, and both are set, to ", message)


def test_a_later_place_wins_whichever_name_each_place_uses(
    project: Path, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.parent / "home" / ".invoke.yaml").write_text("train: {early_stopping_patience: 3}\n")
    monkeypatch.setenv("INVOKE_TRAIN_PATIENCE", "4")
    assert load(context()).train.early_stopping_patience == 4
    assert load(context(text="train: {early_stopping_patience: 5}")).train.early_stopping_patience == 5


def test_a_wrong_value_under_an_old_name_is_refused_where_it_stands_under_the_new_name(
    context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = "train.early_stopping_patience: expected a whole number from 0 to 10000"
    assert refusal(context(text="train:\n  patience: x\n")) == f'f.yaml:2: {expected}, found "x"'
    assert refusal(context(text="train:\n  patience: null\n")) == f"f.yaml:2: {expected}, found null"
    monkeypatch.setenv("INVOKE_TRAIN_PATIENCE", "x")
    assert refusal(context()) == f'environment INVOKE_TRAIN_PATIENCE: {expected}, found "x"'


def test_an_old_value_is_accepted_with_one_line(context: Make, capsys: pytest.CaptureFixture[str]) -> None:
    text = "tune:\n  recipes: [fast, fast-eight-backward, fast-eight]\n"
    for _ in range(2):
        assert load(context(text=text)).tune.recipes == ("fast", "fast-int8-backward", "fast-int8")
    assert capsys.readouterr().err == (
        "f.yaml:2: tune.recipes: fast-eight-backward is now fast-int8-backward, fast-eight is now fast-int8; "
        "rename it there\n"
    )
    assert set(RENAMED_VALUES[("tune", "recipes")].values()) <= set(RECIPES)


def test_an_empty_old_name_is_ignored_and_a_contradicting_one_is_refused(
    context: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load(context(text="registry: {user: ns/a}\ncluster: {registry_user: null}\n")).registry.user == "ns/a"
    assert capsys.readouterr().err == ""
    assert refusal(context(text="registry: {user: ns/a}\ncluster: {registry_user: ns/b}\n")) == (
        "f.yaml:2: cluster.registry_user is now registry.user, and both are set, "
        'to "ns/b" and "ns/a"; remove the old one'
    )
