"""Strict reading: any deviation from the record raises an error with its path."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from bench.records import schema
from tests.support.cases import Case, load_cases


class Colour(str, Enum):
    RED = "RED"
    BLUE = "BLUE"


@dataclass(frozen=True, kw_only=True)
class Inner:
    count: int
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    colour: Colour = Colour.RED
    inner: Inner | None = None
    items: list[Inner] = field(default_factory=list)
    texts: tuple[str, ...] = ()
    table: dict[str, float] = field(default_factory=dict)
    anything: dict[str, Any] = field(default_factory=dict)
    flag: bool = False


def test_a_record_comes_back_equal():
    full = Outer(
        name="a", colour=Colour.BLUE, inner=Inner(count=1, share=0.5), items=[Inner(count=2), Inner(count=3)],
        texts=("x", "y"), table={"a": 1.5}, anything={"list": [1, None, "x"]}, flag=True,
    )  # fmt: skip
    for record in (full, Outer(name="only")):
        assert schema.from_json(Outer, schema.to_json(record)) == record
    assert schema.to_json({"a": float("nan"), "b": [float("inf")]}) == {"a": None, "b": [None]}


@dataclass(frozen=True, kw_only=True)
class Lists:
    seconds: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    rows: list[list[float]] = field(default_factory=list)


def test_integers_in_float_fields_become_floats():
    read = schema.from_json(Lists, {"seconds": [1, 2.5], "losses": [1, None, 0.5], "counts": [3]})
    assert read == Lists(seconds=[1.0, 2.5], losses=[1.0, None, 0.5], counts=[3])
    share = schema.from_json(Inner, {"count": 1, "share": 2}).share
    assert {type(value) for value in (*read.seconds, read.losses[0], share)} == {float}


@pytest.mark.parametrize("case", load_cases(__file__, "mismatched.yaml"))
def test_a_mismatched_document_is_refused_with_its_path(case: Case):
    with pytest.raises(schema.SchemaError) as refused:
        schema.from_json({"Outer": Outer, "Lists": Lists}[case["record"]], case["document"], "f")
    assert str(refused.value) == f"f: {case['expected']}"
