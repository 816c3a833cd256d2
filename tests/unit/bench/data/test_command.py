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
from tests.support.small_inputs import edit_json


@pytest.fixture
def run_forecast(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, tokenizer_of: Callable[..., Any]
) -> Callable[..., int]:
    """Function that runs the command on a file of 30 lines; `document` replaces parts of the data's settings."""
    edit_json(model_folder / "config.json", max_position_embeddings=1000)
    monkeypatch.setattr(derived, "load_trial_tokenizer", lambda _: tokenizer_of("chatml"))
    lines = [json.dumps({"prompt": f"{number}?", "completion": "yes"}) for number in range(30)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))

    def run(**document: Any) -> int:
        changes = {"max_seq_len": 100, "training": {"evaluate_every": 0}}
        trial = tiny_training.plan(model_folder, tmp_path / "d.jsonl", **changes).to_json()
        trial["training"]["data"] |= {"max_seq_len": 100} | document
        (tmp_path / "trial.json").write_text(json.dumps(trial))
        return cli.main(["forecast", "--trial", str(tmp_path / "trial.json")])

    return run


def test_the_report_is_one_line(run_forecast: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_forecast(validation_share=0.2) == 0
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)["data"]
    assert report["examples"] + report["validation_examples"] == 30


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"files": ["/nowhere"]}, "/nowhere: .*No such file"),
        ({"unknown": 1}, "unknown: unknown field; .* files, max_seq_len"),
    ],
)
def test_errors_are_one_line(
    document: dict[str, Any],
    message: str,
    run_forecast: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_forecast(**document) == 2
    out, err = capsys.readouterr()
    assert (json.loads(out)["reason_code"], err.count("\n")) == ("bad_input", 1)
    assert re.search(message, err)
