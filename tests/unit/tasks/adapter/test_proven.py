"""What a check says, what it lets through, and what goes into the card and a folder."""

import dataclasses
from pathlib import Path

import pytest

from bench.records.paths import ADAPTER_CHECK_FILE
from bench.records.training import AdapterCheck
from tasks.adapter import model_card, push
from tasks.adapter.artifact import TrainedAdapter
from tasks.adapter.check import broken, change, differs
from tasks.adapter.merge import refuse
from tasks.errors import ConfirmationRequired, UsageError
from tests.unit.tasks.adapter.conftest import SHA256, WEIGHTS, checked, form, keep


@pytest.mark.parametrize(
    ("moved", "half", "is_named"),
    [
        (0.0500, 0.01, True),
        (-0.050, 0.01, True),  # lower is another model, too
        (0.0500, 0.06, False),  # within the interval
        (0.0010, 0.0001, False),  # beyond it, and less than bf16's own rounding
    ],
)
def test_a_difference_beyond_its_interval_is_named(moved: float, half: float, is_named: bool) -> None:
    assert differs(form("bf16", moved, half)) is is_named
    assert not differs(form("trained"))
    assert change(form("bf16", 0.05, 0.01)) == "+0.0500 (+0.0400 to +0.0600)"


def test_a_merge_that_changes_the_loss_is_refused_and_the_other_base_is_offered(trained: TrainedAdapter) -> None:
    with pytest.raises(ConfirmationRequired, match=r"was not checked; type: inv adapter\.check --run=r"):
        refuse(trained, None, "bf16")
    unmeasured = dataclasses.replace(trained, record=dataclasses.replace(trained.record, evaluations=[]))
    with pytest.raises(
        ConfirmationRequired, match="no data was held out, so no check can be made; --anyway merges all the same"
    ):
        refuse(unmeasured, None, "bf16")
    found = checked(form("merged-bf16", 0.05, 0.01), form("merged-nf4", 0.0, 0.01))
    with pytest.raises(
        ConfirmationRequired, match=r"\+0\.0500 .*--base=nf4` keeps the loss of the training; --anyway merges"
    ):
        refuse(trained, found, "bf16")
    refuse(trained, found, "nf4")
    found = checked(form("merged-bf16", 0.0, 0.01, unended=2))
    with pytest.raises(ConfirmationRequired, match="2 of 2 merged answers did not end, 0 as it was trained"):
        refuse(trained, found, "bf16")


def test_a_check_of_another_adapter_counts_as_none_and_a_changed_one_is_refused(trained: TrainedAdapter) -> None:
    assert trained.check() is None
    keep(trained, checked(adapter_sha256="0" * 64))
    assert trained.check() is None
    keep(trained, checked())
    assert isinstance(trained.check(), AdapterCheck)
    path = trained.folder / ADAPTER_CHECK_FILE
    path.write_text(path.read_text().replace("1.5", "1.4"))
    with pytest.raises(ConfirmationRequired, match=r"its sha256 does not match.*inv adapter\.check --run=r"):
        trained.check()


def test_the_check_fails_where_what_is_served_is_not_what_was_trained(trained: TrainedAdapter) -> None:
    assert broken(trained, checked(form("merged-bf16", 0.5))) is None, "a form that nobody serves"
    said = broken(trained, checked(form("folder", 0.5)))
    assert said is not None
    assert "the merged folder is not what was trained: +0.5000" in said
    said = broken(trained, checked(form("folder", 0.0, unended=1), merged="/m"))
    assert said is not None
    assert "/m/generation_config.json: eos_token_id must name the tokens [2]" in said
    other = dataclasses.replace(checked(), forms=[dataclasses.replace(form("trained"), loss=1.7)])
    said = broken(trained, other)
    assert said is not None
    assert "held-out loss is 1.7000, the training has recorded 1.5000" in said


def test_the_card_says_data_settings_losses_and_cost_and_escapes_what_others_have_named(
    trained: TrainedAdapter,
) -> None:
    inputs = {"model": {"sha256": "m" * 64}, "files": {"<script>|.jsonl": "f" * 64}}
    hostile = dataclasses.replace(trained, run=dataclasses.replace(trained.run, provenance={"inputs": inputs}))
    written = model_card.written(hostile, checked(form("merged-bf16", 0.01)), base="bf16")
    assert written.startswith('---\nbase_model: "m"\nlibrary_name: "transformers"\n')
    for words in (
        SHA256,
        "m" * 64,
        "f" * 64,
        "| merged, --base=bf16 | 1.5100 | +0.0100 | 0 of 2 |",
        "| lora_rank | 16 |",
    ):
        assert words in written
    assert "| cost |" in written
    assert "<script>" not in written
    assert "Held-out loss in each form" not in model_card.written(trained, None)


def test_a_folder_gets_the_adapter_whole_and_a_card(trained: TrainedAdapter, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    files = push.files_of(trained, tmp_path / "scratch", merged=False)
    push.into_folder(files, tmp_path / "home")
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == [
        "README.md", "adapter_config.json", "adapter_model.safetensors"
    ]  # fmt: skip
    assert (tmp_path / "home" / "adapter_model.safetensors").read_bytes() == WEIGHTS
    with pytest.raises(UsageError, match="is there and not empty"):
        push.into_folder(files, tmp_path / "home")
    with pytest.raises(UsageError, match=r"no merged model here; `inv adapter\.merge` makes it"):
        push.files_of(trained, tmp_path, merged=True)
    trained.note_merged("/nowhere", {"adapter_sha256": SHA256})
    with pytest.raises(UsageError, match=r"no merged model here; `inv adapter\.merge` makes it"):
        push.files_of(trained, tmp_path, merged=True)
    on_pods = dataclasses.replace(trained, run=dataclasses.replace(trained.run, fleet_kind="pods"))
    with pytest.raises(UsageError, match="it is at /nowhere on a worker"):
        push.files_of(on_pods, tmp_path, merged=True)
