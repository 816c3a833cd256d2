"""Tests of the adapter's check and merge."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from bench.records.adapter import AdapterCheck, ServedForm
from bench.records.atomic_files import sha256_of
from bench.records.paths import ADAPTER_CHECK_FILE, LEDGER_FILE
from remote.fleet.ledger import Ledger
from tasks.adapter import merge
from tasks.adapter.artifact import TrainedAdapter, open_training
from tasks.adapter.check import (
    find_failure,
    format_change,
    hidden_change_warning,
)
from tasks.adapter.merge import require_same_loss
from tasks.errors import ConfirmationRequired, RetryableError
from tasks.settings.layers import Settings
from tasks.settings.sections import ResultsSection
from tests.unit.tasks.adapter.conftest import SHA256, adapter_check, form, save_check


@pytest.mark.parametrize(
    ("change", "half", "is_named", "hidden"),
    [
        (0.05, 0.01, True, None),
        (-0.05, 0.01, True, None),  # a lower loss is another model, too
        (0.05, 0.06, False, "0.11"),  # within the interval
        (0.001, 0.0001, False, None),  # beyond it, and less than bf16's own rounding
        (-0.22, 0.9, False, "1.12"),  # three examples
        (0.001, 0.01, False, None),
    ],
)
def test_a_change_is_named_or_what_could_be_hidden(
    change: float, half: float, is_named: bool, hidden: str | None
) -> None:
    measured = form("merged-bf16", change, half)
    check = adapter_check(measured)
    assert measured.has_other_loss() is is_named
    warning = hidden_change_warning(check, measured)
    assert (warning is None) == (hidden is None)
    assert (hidden or "") in (warning or "")


def test_the_trained_form_has_no_change_and_one_example_no_interval() -> None:
    trained_form = form("trained")
    assert not trained_form.has_other_loss()
    assert hidden_change_warning(adapter_check(), trained_form) is None
    single = dataclasses.replace(form("merged-bf16", 0.001, 0.01), change_low=None, change_high=None)
    assert "train.validation_fraction" in str(hidden_change_warning(adapter_check(single), single))
    assert format_change(form("bf16", 0.05, 0.01)) == "+0.0500 (+0.0400 to +0.0600)"


def test_a_merge_that_changes_the_loss_is_refused_and_the_other_base_is_offered(trained: TrainedAdapter) -> None:
    with pytest.raises(ConfirmationRequired, match=r"inv adapter\.check --run=r"):
        require_same_loss(trained, None, "bf16")
    unmeasured = dataclasses.replace(trained, record=dataclasses.replace(trained.record, evaluations=[]))
    with pytest.raises(ConfirmationRequired, match="--force"):
        require_same_loss(unmeasured, None, "bf16")
    check = adapter_check(form("merged-bf16", 0.05, 0.01), form("merged-nf4", 0.0, 0.01))
    with pytest.raises(ConfirmationRequired, match=r"\+0\.0500 .*--base=nf4`.*--force"):
        require_same_loss(trained, check, "bf16")
    require_same_loss(trained, check, "nf4")
    check = adapter_check(form("merged-bf16", 0.0, 0.01, unended=2))
    with pytest.raises(ConfirmationRequired, match=r"2 of 2 merged answers.*--force"):
        require_same_loss(trained, check, "bf16")


@pytest.mark.parametrize(("checked", "expected"), [(False, [4097]), (True, [4097, 2])])
def test_a_merge_knows_the_end_tokens_of_the_training_without_a_check(
    checked: bool, expected: list[int], trained: TrainedAdapter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if checked:
        save_check(trained, adapter_check())
    trained = dataclasses.replace(trained, record=dataclasses.replace(trained.record, end_ids=[4097]))
    requests: list[Any] = []
    monkeypatch.setattr(merge, "load", lambda _: Settings(root=tmp_path))
    monkeypatch.setattr(merge, "open_training", lambda *_: trained)
    monkeypatch.setattr(merge, "run_on_worker", lambda *arguments: requests.append(arguments[-1]) or {})
    merge.merge_adapter(Context(), None, base="bf16", out="/m", force=True)
    assert [request["end_ids"] for request in requests] == [expected]


def test_a_check_of_another_adapter_counts_as_none_and_a_changed_one_is_refused(trained: TrainedAdapter) -> None:
    assert trained.read_check() is None
    save_check(trained, adapter_check(adapter_sha256="0" * 64))
    assert trained.read_check() is None
    save_check(trained, adapter_check())
    assert isinstance(trained.read_check(), AdapterCheck)
    path = trained.folder / ADAPTER_CHECK_FILE
    path.write_text(path.read_text().replace("1.5", "1.4"))
    with pytest.raises(ConfirmationRequired, match=r"inv adapter\.check --run=r"):
        trained.read_check()


@pytest.mark.parametrize(
    ("base", "forms", "fails"),
    [
        (None, [form("merged-bf16", 0.5)], None),  # a form that is not served
        (None, [form("folder", 0.5)], r"\+0\.5000"),
        (None, [form("folder", 0.0, unended=1)], r"/m/generation_config.json: eos_token_id .*\[2\]"),
        ("nf4", [form("merged-nf4", 0.0023), form("folder", 0.0023)], None),  # rounding, as in memory
        (
            "nf4",
            [form("merged-nf4", 0.0023), form("folder", 0.0024)],
            "1.50240, .* memory 1.50230; remove /m, then type: inv adapter.merge .* --out=/m$",
        ),
        ("nf4", [form("merged-nf4", 0.05), form("folder", 0.05)], r"differs from the trained one by \+0.0500"),
        ("bf16", [form("merged-bf16", 0.0023), form("folder", 0.0023)], r"differs from the trained one by \+0.0023"),
    ],
)
def test_the_check_fails_where_what_is_served_is_not_what_was_trained_or_merged(
    base: str | None, forms: list[ServedForm], fails: str | None, trained: TrainedAdapter
) -> None:
    if base is not None:
        (trained.folder / "m").mkdir()
        trained.write_merged(str(trained.folder / "m"), {"base": base, "adapter_sha256": SHA256})
    check = adapter_check(*forms, merged="/m")
    failure = find_failure(trained, check)
    assert re.search(fails, failure or "") if fails else failure is None
    if base is not None and fails is None:
        require_same_loss(trained, check, base)


def test_the_check_fails_where_the_trainings_loss_is_not_found_again(trained: TrainedAdapter) -> None:
    other = dataclasses.replace(adapter_check(), forms=[dataclasses.replace(form("trained"), loss=1.7)])
    assert re.search(r"1\.7000.* 1\.5000", find_failure(trained, other) or "")


def write_sums(folder: Path, *names: str) -> None:
    lines = [f"{sha256_of(folder / name)}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def test_an_adapter_of_a_training_that_goes_on_is_refused(trained: TrainedAdapter, tmp_path: Path) -> None:
    (trained.folder / LEDGER_FILE).unlink()
    Ledger.create(trained.folder / LEDGER_FILE, ["train"])
    with pytest.raises(RetryableError, match="--resume=r "):
        open_training(Settings(root=tmp_path, results=ResultsSection(folder=".")), "r")


def test_an_adapter_with_a_changed_file_is_refused(trained: TrainedAdapter, tmp_path: Path) -> None:
    settings = Settings(root=tmp_path, results=ResultsSection(folder="."))
    config = trained.adapter / "adapter_config.json"
    write_sums(trained.folder, "adapter/adapter_config.json", "adapter/adapter_model.safetensors", "run.json")
    assert open_training(settings, "r").adapter == trained.adapter
    for change in (lambda: config.write_text('{"lora_alpha": 64}'), config.unlink):
        change()
        with pytest.raises(ConfirmationRequired, match=r"adapter_config\.json: .*; .inv collect --run=r"):
            open_training(settings, "r")
