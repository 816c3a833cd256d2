"""Cases of pure functions as data: a YAML file next to the test, one mapping for each case.

# verdicts.yaml
- name: equal means
  input: {first: [1.0, 1.1], second: [1.0, 1.1]}
  expected: not_shown

@pytest.mark.parametrize("case", load_cases(__file__, "verdicts.yaml"))
def test_verdict(case: Case) -> None:
    assert verdict(**case["input"]) == case["expected"]
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

Case = dict[str, Any]


def load_cases(test_file: str, name: str) -> list[Any]:
    """Return the cases of file `name` next to `test_file` as pytest parameters whose ids are the cases' names."""
    text = (Path(test_file).parent / name).read_text("utf-8")
    cases = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe; C is faster
    names = [case["name"] for case in cases]
    assert len(set(names)) == len(names), f"{name}: two cases have the same name"
    return [pytest.param(case, id=case["name"]) for case in cases]
