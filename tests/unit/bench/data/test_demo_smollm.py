"""Data of the real demo: equal on every machine, consistent, and never written over another file."""

import json
from pathlib import Path

import pytest

from bench.data import demo_smollm, readers
from bench.data.inputs import InputError
from tests.support.paths import ROOT


def test_the_file_is_made_once_and_verified_then(tmp_path: Path) -> None:
    path = tmp_path / "data" / "orders.jsonl"
    assert [demo_smollm.make_data(path), demo_smollm.make_data(path)] == [True, False]
    assert len(readers.read(path).conversations) == demo_smollm.LINES
    path.write_text("{}")
    with pytest.raises(InputError, match=r"orders\.jsonl: .*; move the file away"):
        demo_smollm.make_data(path)


def test_each_object_matches_its_sentence() -> None:
    for sentence, answer in demo_smollm.make_orders():
        order = json.loads(answer)
        assert order.pop("name") in sentence
        assert f"able {order.pop('table')}" in sentence
        for dish, count in order.items():
            assert (
                f" {dish}" if count == 1 else f"{demo_smollm.COUNTS[count - 1]} {demo_smollm.DISHES[dish]}"
            ) in sentence


def test_the_demos_sample_prompts_do_not_occur_in_its_data() -> None:
    settings = (ROOT / "docs" / "demo-train.yaml").read_text(encoding="utf-8")
    assert "Zoe" in settings
    assert "Marvin" in settings
    assert not {"Zoe", "Marvin"} & set(demo_smollm.NAMES)
