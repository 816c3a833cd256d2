"""Pairs from documentation strings: parsed, never imported; the same every time."""

from pathlib import Path

import pytest

from bench.data.corpus import documentation_pairs

pytestmark = pytest.mark.slow

SOURCE = '''"""A module that would explode if it were imported, documented at length."""
raise SystemExit("imported")

class Thing:
    """A thing with a documentation string that is long enough to be worth learning."""

    def turn(self, angle, *, speed=1):
        """Turn the thing by an angle, at a speed; blocks until it has turned."""

    async def wait(self, a, b, c, d, e, f, g):
        """Wait for something that takes many arguments, more than are ever shown."""

    def short(self):
        """Too short."""

    def undocumented(self):
        pass

def twice():
    """Turn the thing by an angle, at a speed; blocks until it has turned."""
'''


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "package" / "test").mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").write_text(SOURCE)
    (tmp_path / "package" / "test" / "left_out.py").write_text(SOURCE.replace("thing", "test"))
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "left_out.py").write_text(SOURCE.replace("thing", "other"))
    (tmp_path / "broken.py").write_text("def (:")
    return tmp_path


def test_modules_classes_and_functions_are_asked_about_by_name_and_each_string_answers_once(library: Path):
    instructions, responses = zip(*documentation_pairs(library), strict=True)
    assert instructions == (
        "What is the Python module package for?",
        "Describe the class package.Thing.",
        "What does the method package.Thing.turn(angle, speed) do?",
        "What does the method package.Thing.wait(a, b, c, d, e, f, ...) do?",
    )
    assert responses[2] == "Turn the thing by an angle, at a speed; blocks until it has turned."
    assert len(set(responses)) == len(responses)


def test_this_python_carries_enough_and_a_wide_spread_of_lengths():
    pairs = documentation_pairs()
    lengths = sorted(len(response) for _, response in pairs)
    assert len(pairs) >= 1000
    assert lengths[len(lengths) // 10] * 5 < lengths[len(lengths) * 9 // 10]
