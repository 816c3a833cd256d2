"""Data of the real demo: equal on every machine, consistent, and never written over another file."""

import json
from pathlib import Path

import pytest

from bench.data.inputs import InputError
from bench.train import demo_orders, readers
from tests.support.paths import ROOT


def test_the_file_is_made_once_and_verified_then(tmp_path: Path) -> None:
    path = tmp_path / "data" / "orders.jsonl"
    assert [demo_orders.make(path), demo_orders.make(path)] == [True, False]
    assert len(readers.read(path).conversations) == demo_orders.LINES
    path.write_text("{}")
    with pytest.raises(InputError, match=r"orders\.jsonl: .*; move the file away"):
        demo_orders.make(path)


def test_each_object_matches_its_sentence() -> None:
    for sentence, answer in demo_orders.make_orders():
        order = json.loads(answer)
        assert order.pop("name") in sentence
        assert f"able {order.pop('table')}" in sentence
        for dish, count in order.items():
            assert (
                f" {dish}" if count == 1 else f"{demo_orders.COUNTS[count - 1]} {demo_orders.DISHES[dish]}"
            ) in sentence


def test_the_demos_sample_prompts_do_not_occur_in_its_data() -> None:
    settings = (ROOT / "docs" / "demo-train.yaml").read_text(encoding="utf-8")
    assert "Zoe" in settings
    assert "Marvin" in settings
    assert not {"Zoe", "Marvin"} & set(demo_orders.NAMES)
