"""The data of the real demo: the same on every machine, right in what it says, and never over somebody's own file."""

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
    with pytest.raises(InputError, match=r"orders\.jsonl: is not what demo makes; move it away"):
        demo_orders.make(path)


def test_each_object_says_what_its_sentence_says() -> None:
    for words, answer in demo_orders.orders():
        said = json.loads(answer)
        assert said.pop("name") in words
        assert f"able {said.pop('table')}" in words
        for dish, count in said.items():
            assert (
                f" {dish}" if count == 1 else f"{demo_orders.COUNTS[count - 1]} {demo_orders.DISHES[dish]}"
            ) in words


def test_what_the_demo_asks_stands_nowhere_in_its_data() -> None:
    asked = (ROOT / "docs" / "demo-train.yaml").read_text(encoding="utf-8")
    assert "Zoe" in asked
    assert "Marvin" in asked
    assert not {"Zoe", "Marvin"} & set(demo_orders.NAMES)
