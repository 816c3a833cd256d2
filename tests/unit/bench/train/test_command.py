"""`python -m bench data`: the report as one line, and every refusal as one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.commands import cli
from bench.data import tokenizer


@pytest.fixture
def ask(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, tokenizer_of: Callable[..., Any]
) -> Callable[..., int]:
    """`python -m bench data` over one file of 30 lines; `document` replaces parts of the settings."""
    monkeypatch.setattr(tokenizer, "load_tokenizer", lambda _: tokenizer_of("chatml"))
    lines = [json.dumps({"prompt": f"{number}?", "completion": "yes"}) for number in range(30)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))

    def act(*words: str, **document: Any) -> int:
        spec = {"files": [str(tmp_path / "d.jsonl")], "weights": [1.0], "max_seq_len": 100} | document
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        return cli.main(["data", "--model", str(model_folder), "--spec", str(tmp_path / "spec.json"), *words])

    return act


def test_the_report_is_one_line(ask: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for was_cached in (False, True):
        assert ask("--cache", str(tmp_path / "cache"), validation_share=0.2) == 0
        (line,) = capsys.readouterr().out.splitlines()
        report = json.loads(line)
        assert report["examples"] + report["validation_examples"] == 30
        assert report["was_cached"] is was_cached


@pytest.mark.parametrize(
    ("words", "document", "message"),
    [
        ((), {"labels": "none"}, "labels: expected one of assistant, all, found 'none'"),
        ((), {"files": ["/nowhere"]}, "/nowhere: cannot be read: No such file"),
        ((), {"max_seq_len": "long"}, "max_seq_len: expected a whole number, found text"),
        ((), {"unknown": 1}, "unknown: unknown field; the fields are files, weights"),
        (("--row-tokens", "50"), {}, "--row-tokens: 50 is less than max_seq_len, 100"),
    ],
)
def test_refusals_are_one_line(
    words: tuple[str, ...],
    document: dict[str, Any],
    message: str,
    ask: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ask(*words, **document) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
