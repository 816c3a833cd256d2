"""`python -m bench forecast`: the report on the data and every error are one line."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.commands import cli
from bench.workloads.finetune import derived
from tests.support import tiny_training
from tests.support.paths import ROOT
from tests.support.small_inputs import edit_json


@pytest.fixture
def run_forecast(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, tokenizer_of: Callable[..., Any]
) -> Callable[..., int]:
    """Function that runs the command on a file of 30 lines; `document` replaces parts of the data's settings."""

    def load(trial: Any) -> Any:
        return tokenizer_of(trial.training.data.chat_template or "chatml")

    edit_json(model_folder / "config.json", max_position_embeddings=1000)
    monkeypatch.setattr(derived, "load_trial_tokenizer", load)
    lines = [json.dumps({"prompt": f"{number}?", "completion": "yes"}) for number in range(30)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))

    def run(*arguments: str, **document: Any) -> int:
        length = document.get("max_seq_len", 100)
        changes = {"max_seq_len": length, "training": {"evaluate_every": 0}}
        trial = tiny_training.plan(model_folder, tmp_path / "d.jsonl", **changes).to_json()
        trial["training"]["data"] |= {"max_seq_len": length} | document
        (tmp_path / "trial.json").write_text(json.dumps(trial))
        return cli.main(["forecast", "--trial", str(tmp_path / "trial.json"), *arguments])

    return run


def test_the_report_is_one_line(
    run_forecast: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for was_cached in (False, True):
        assert run_forecast("--cache", str(tmp_path / "cache"), validation_share=0.2) == 0
        (line,) = capsys.readouterr().out.splitlines()
        report = json.loads(line)["data"]
        assert report["examples"] + report["validation_examples"] == 30
        assert report["was_cached"] is was_cached


@pytest.mark.parametrize(
    ("arguments", "document", "message"),
    [
        ((), {"files": ["/nowhere"]}, "/nowhere: .*No such file"),
        ((), {"unknown": 1}, "unknown: unknown field; .* files, max_seq_len"),
    ],
)
def test_errors_are_one_line(
    arguments: tuple[str, ...],
    document: dict[str, Any],
    message: str,
    run_forecast: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_forecast(*arguments, **document) == 2
    out, err = capsys.readouterr()
    assert (json.loads(out)["reason_code"], err.count("\n")) == ("bad_input", 1)
    assert re.search(message, err)


def test_tool_turns_need_a_template_that_writes_them(
    run_forecast: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, call = tmp_path / "tools.jsonl", {"function": {"name": "f", "arguments": {"x": 1}}}
    turns = [{"role": "user", "content": "a?"}, {"role": "assistant", "tool_calls": [call]}]
    path.write_text(json.dumps({"messages": turns, "tools": [{"function": {"name": "f"}}]}))
    assert run_forecast(files=[str(path)], validation_share=0.0) == 2
    refused = json.loads(capsys.readouterr().out)
    assert refused["reason_code"] == "bad_input"
    assert refused["remedy"].startswith("use a model whose template writes them, set train.chat_template, ")
    template = (ROOT / "docs/chatml-tools.jinja").read_text(encoding="utf-8")
    options = {"chat_template": template, "system": "s", "max_seq_len": 1000}
    assert run_forecast(files=[str(path)], validation_share=0.0, **options) == 0
    (shown,) = json.loads(capsys.readouterr().out)["data"]["shown"]
    assert shown["parts"][0]["text"].startswith("<|im_start|>system\ns\n")
    assert [part["text"] for part in shown["parts"] if part["is_target"]] == [
        '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><|im_end|>'
    ]
