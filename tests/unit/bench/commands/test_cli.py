"""Command line of `python -m bench`: output, rejected input and exit codes. No trial runs here."""

import io
import json
import re
from pathlib import Path

import pytest

from bench.commands import cli, run
from bench.data.inputs import InputError
from bench.records.result import TrialResult
from bench.records.run import Progress
from bench.records.status import Outcome, ReasonCode, TrialStatus, read_failure


def test_inspect_reports_the_inputs_or_rejects_them_in_one_line(capsys, model_folder: Path, data_file: Path):
    assert cli.main(["inspect", "--model", str(model_folder), "--data", str(data_file)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    assert document["model"].keys() >= {"path", "sha256", "parameters", "bytes"}
    assert document["data"].keys() >= {"path", "sha256"}
    assert document["data"]["samples"] == 20
    with data_file.open("a") as file:
        file.write("no chat\n")
    assert cli.main(["inspect", "--model", str(model_folder), "--data", str(data_file)]) == 2
    out, err = capsys.readouterr()
    failed = read_failure(out.encode())
    assert failed is not None
    assert (failed[0], f"{failed[1]}\n") == (ReasonCode.BAD_INPUT, err)
    assert err.startswith(f"{data_file}: line 21: ")
    assert err.count("\n") == 1
    assert [read_failure(output) for output in (b"", b"{", b'{"kind": "error"}')] == [None] * 3


FLAGS = ("--trial-name", "optimized", "--model", "M")


@pytest.mark.usefixtures("restored_signals")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (FLAGS, "--data: missing; "),
        (("--trial", "t.json", "--data", "D"), "--data: only with --trial-name; "),
        (("--trial", "t.json", "--set", "seed=1"), "t.json: "),
        ((*FLAGS, "--data", "D", "--set", "max_seq_len"), "--set max_seq_len: "),
        ((*FLAGS, "--data", "D", "--set", "seed=1", "--set", "seed=2"), "--set seed: "),
        ((*FLAGS, "--data", "D", "--set", "max_seq_length=4"), "--set: max_seq_length: unknown field; "),
        ((*FLAGS, "--data", "D", "--trial-name", "fastest"), "trial 'fastest' "),
    ],
)
def test_a_trial_by_flags_that_is_not_one_is_refused_in_one_line(flags, message, capsys, tmp_path):
    assert cli.main(["run", *flags, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert (error[: len(message)], error.count("\n")) == (message, 1)
    assert not (tmp_path / "out").exists()


def test_settings_are_parsed_as_the_type_of_their_field(make_trial):
    settings = ["max_seq_len=256", "learning_rate=1e-3", "gradient_checkpointing=false", "lora_targets=q_proj, v_proj"]
    trial = cli.apply_overrides(make_trial(), [*settings, "optimizer=adamw_torch"])
    assert (trial.max_seq_len, trial.learning_rate, trial.gradient_checkpointing) == (256, 1e-3, False)
    assert (trial.lora_targets, trial.optimizer) == (("q_proj", "v_proj"), "adamw_torch")
    assert trial.reason.startswith("a test; changed by hand: max_seq_len=256, learning_rate=1e-3, ")
    assert cli.apply_overrides(trial, ()) == trial


@pytest.mark.parametrize("action", cli.ADAPTER_ACTIONS)
def test_every_adapter_action_has_its_request_and_handler(action, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO('{"unknown": 1}'))
    assert cli.main(["adapter", action]) == 2
    assert "unknown" in capsys.readouterr().err


OUT = ("run", "--out", "o")


@pytest.mark.parametrize("argv", [("dance",), OUT, (*OUT, "--trial", "t.json", "--trial-name", "train")])
def test_wrong_usage_exits_with_2_and_one_line(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2
    assert re.fullmatch(r"python -m bench.*--help`\n", capsys.readouterr().err)


def test_a_folder_is_prepared_with_nothing_in_it_and_one_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/out: .*: Not a directory; .* name another --out"):
        run.prepare_folder(tmp_path / "file" / "out")
    run.prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "a" / "result.json").write_text('{"kind": "trial_result"')
    run.check_not_finished(tmp_path / "a")  # a damaged result does not count as finished


def test_metrics_are_mean_amounts_over_the_median_step_if_one_was_measured(make_record, tmp_path: Path):
    record = make_record()
    for seconds, useful in ((0.2, 40), (0.1, 20), (0.9, 30)):
        record.add_step(record.steps, seconds=seconds, loss=2.0, samples=2, tokens=64, useful=useful)
    record.write(Outcome(TrialStatus.SUCCEEDED))
    metrics = TrialResult.read(tmp_path / "result.json").metrics
    assert metrics is not None
    assert metrics.step_time_sec.median == 0.2
    assert metrics.samples_per_sec == pytest.approx(2 / 0.2)
    assert metrics.tokens_per_sec == pytest.approx(64 / 0.2)
    assert metrics.useful_tokens_per_sec == pytest.approx(30 / 0.2)
    assert metrics.padding_percent == pytest.approx(100 * 102 / 192)
    assert metrics.peak_vram_bytes is None
    assert metrics.peak_rss_bytes > 1 << 20
    record = make_record(worker="w")
    record.warmup.step_time_sec.append(0.1)
    record.write(Outcome(TrialStatus.TIMED_OUT, reason="the deadline of 1 s passed"))
    result = TrialResult.read(tmp_path / "result.json")
    assert (result.metrics, result.status, result.worker) == (None, TrialStatus.TIMED_OUT, "w")
    progress = Progress(**json.loads((tmp_path / "progress.json").read_text()))
    assert (progress.phase, progress.step, progress.steps) == ("write", 1, 3)
