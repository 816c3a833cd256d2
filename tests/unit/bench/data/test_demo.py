"""Data of the demos: paragraphs of Python's documentation, and orders that are equal on every machine."""

from functools import partial
from pathlib import Path

import pytest

from bench.data import demo, readers
from bench.data.inputs import InputError


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
    with pytest.raises(InputError, match=r"config\.json: .*SHA256SUMS.*or remove"):
        make(path)
    path.write_text("{}")
    with pytest.raises(InputError, match=r"; set another data\.path"):
        make(path)
