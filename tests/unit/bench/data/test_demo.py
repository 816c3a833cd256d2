"""Data of the demos: parsed from documentation strings, never imported; orders that are equal on every machine."""

import json
from functools import partial
from pathlib import Path

import pytest

from bench.data import demo, readers
from bench.data.demo import documentation_pairs
from bench.data.inputs import InputError

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
    (tmp_path / "package" / "test" / "skipped.py").write_text(SOURCE.replace("thing", "test"))
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "skipped.py").write_text(SOURCE.replace("thing", "other"))
    (tmp_path / "broken.py").write_text("def (:")
    return tmp_path


def test_instructions_name_modules_classes_and_functions_and_each_response_occurs_once(library: Path):
    instructions, responses = zip(*documentation_pairs(library), strict=True)
    assert instructions == (
        *("What is package?", "What is package.Thing?", "What is package.Thing.turn?", "What is package.Thing.wait?"),
    )
    assert responses[2] == "Turn the thing by an angle, at a speed; blocks until it has turned."
    assert len(set(responses)) == len(responses)


@pytest.mark.slow
def test_this_python_has_enough_strings_of_widely_different_lengths():
    pairs = documentation_pairs()
    lengths = sorted(len(response) for _, response in pairs)
    assert len(pairs) >= 1000
    assert lengths[len(lengths) // 10] * 5 < lengths[len(lengths) * 9 // 10]


def test_what_the_demo_made_is_verified_and_all_else_is_refused(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, make = tmp_path / "data" / "orders.jsonl", partial(demo.make, model_folder, is_real=True)
    with pytest.raises(InputError, match=r"; set another model\.path"):
        make(path)
    assert readers.read(path).lines == demo.ORDERS
    demo.write_sums(model_folder)
    make(path)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["made", "verified", "verified"]
    (model_folder / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"config\.json: .*SHA256SUMS.*; remove"):
        make(path)
    path.write_text("{}")
    with pytest.raises(InputError, match=r"orders\.jsonl\.sha256"):
        make(path)
    path.with_name("orders.jsonl.sha256").unlink()
    with pytest.raises(InputError, match=r"; set another data\.path"):
        make(path)


def test_each_object_matches_its_sentence() -> None:
    for sentence, answer in demo.make_orders():
        order = json.loads(answer)
        assert order.pop("name") in sentence
        assert f"able {order.pop('table')}" in sentence
        for dish, count in order.items():
            assert (f" {dish}" if count == 1 else f"{demo.COUNTS[count - 1]} {demo.DISHES[dish]}") in sentence
