"""Bytes and shares as text."""

import pytest

from bench.records import units
from tests.support.cases import Case, load_cases


@pytest.mark.parametrize("case", load_cases(__file__, "units.yaml"))
def test_format(case: Case) -> None:
    assert getattr(units, case["function"])(*case["input"]) == case["expected"]
