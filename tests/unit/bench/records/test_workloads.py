"""Registered workloads: each is complete, and no code decides by a workload's name."""

import re

import pytest

from bench.records.workloads import NEEDS, WORKLOADS, Workload
from bench.workloads import load
from tests.support.paths import ROOT


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_a_workload_has_the_functions_of_its_registration(workload: Workload) -> None:
    names = {"measure"}
    names |= {"follow"} if workload.is_ranked else set()
    names |= {"check_inputs"} if workload.has_training else set()
    assert [name for name in names if not callable(getattr(load(workload), name, None))] == []
    assert set(workload.needs) <= set(NEEDS)


def test_a_suite_is_registered_once() -> None:
    names = ["all", *(suite.name for workload in WORKLOADS.values() for suite in workload.suites)]
    assert len(set(names)) == len(names)


def test_no_code_compares_a_kind_with_the_name_of_a_workload() -> None:
    names = "|".join(WORKLOADS)
    comparison = re.compile(
        rf"""kind (?:==|!=|(?:not )?in) .*["'](?:{names})["']|["'](?:{names})["'] [=!]= \S*kind\b"""
    )
    paths = (path for top in ("bench", "remote", "reports", "tasks") for path in (ROOT / top).rglob("*.py"))
    assert [str(path) for path in paths if comparison.search(path.read_text(encoding="utf-8"))] == []
