"""Invalid input of `python -m bench run`: one line, exit 2, no files left."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.commands import cli

pytestmark = pytest.mark.usefixtures("restored_signals")

CHAT = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because it is so."}]}


def write_chats(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps(CHAT) + "\n" for _ in range(count)))
    return path


@pytest.fixture
def rejection(bench_environment, bench_server, tmp_path: Path, tiny_model: Path):
    """Return a function that runs a trial which must be rejected, and returns the line that it prints."""

    def run(*settings: str, model: Path = tiny_model, data: Path, flags: tuple[str, ...] = ()) -> str:
        argv = ["run", "--trial-name", "optimized", "--profile", "tiny", "--model", str(model), "--data", str(data)]
        for setting in settings:
            argv += ["--set", setting]
        argv += [*flags, "--out", str(tmp_path / "out")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with bench_server.start("-m", "bench", *argv, env=bench_environment, **pipes) as process:
            output, errors = process.communicate(timeout=240)
        assert (process.returncode, output, errors.count("\n")) == (2, "", 1)
        assert not (tmp_path / "out").exists()
        return errors

    return run


@pytest.fixture
def changed_model(tmp_path: Path, tiny_model: Path):
    """Return a function that copies the small model and changes its configuration."""

    def make(**changes: Any) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("SHA256SUMS"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
        return folder

    return make


def test_fewer_samples_than_a_batch_are_rejected_with_both_numbers(rejection, tmp_path):
    data = write_chats(tmp_path / "few.jsonl", 7)
    message = rejection(data=data)
    assert re.match(rf"{data}: .* 8 .*\(micro_batch_size\), found 7; ", message)
    assert "micro_batch_size x world_size" in rejection("kind=distributed", "world_size=4", data=data)


def test_a_trial_comes_either_from_a_file_or_from_flags(rejection, tiny_data, tmp_path, capsys):
    message = rejection(data=tiny_data, flags=("--trial", "t.json"))
    assert message.startswith("--trial and --trial-name: ")
    out = ("--out", str(tmp_path / "out"))
    assert cli.main(["run", *out]) == 2
    assert capsys.readouterr().err.startswith("no trial: ")
    assert cli.main(["run", "--trial-name", "optimized", "--model", "M", *out]) == 2
    assert capsys.readouterr().err.startswith("--data: missing; ")
    assert cli.main(["run", "--trial", "t.json", "--set", "seed=1", *out]) == 2
    assert capsys.readouterr().err.startswith("--trial and --set: ")


def test_an_unknown_trial_is_rejected_with_those_of_the_suite(rejection, tiny_data):
    message = rejection(data=tiny_data, flags=("--suite", "quick", "--trial-name", "fastest"))
    assert "'fastest'" in message
    assert message.endswith(" baseline, optimized, train\n")


# Unusual but valid input ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tokenizer_without_padding_pads_with_its_end_token(changed_model, tmp_path, make_trial, run_trial):
    model = changed_model()
    settings = json.loads((model / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    result, log = run_trial(make_trial(model=str(model), data=str(write_chats(tmp_path / "chats.jsonl", 4))))
    assert "padding token" in log
    assert result.metrics is not None
    assert result.metrics.padding_percent > 0
    assert [item.name for item in result.measurements if item.name.startswith("step_")] == [
        *("step_data_sec", "step_forward_sec", "step_backward_sec", "step_optimizer_sec")
    ]
    assert json.loads((tmp_path / "out" / "environment.json").read_text())["model_sha256"]
