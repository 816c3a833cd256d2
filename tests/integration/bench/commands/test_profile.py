"""`python -m bench profile`: the table, the JSON file, and a profiled decoding step."""

import json

from bench.commands import profile
from bench.commands.cli import main
from bench.commands.profile import StepProfile, sum_by_kind


def test_the_command_prints_the_table_and_writes_it_as_json(monkeypatch, capsys, tmp_path, tiny_model, tiny_data):
    shares = sum_by_kind([("nvjet", 8.0, 264)], 10.0)
    step_profile = StepProfile(
        device="a GPU", recipe="fast", milliseconds=10.0, shares=shares, kernels=(("nvjet", 8.0),)
    )
    trials = []
    monkeypatch.setattr(profile, "profile", lambda trial, **_: trials.append(trial) or step_profile)
    argv = ["profile", "--suite", "recipes", "--trial-name", "fast", "--model", str(tiny_model)]
    assert main([*argv, "--data", str(tiny_data), "--set", "held_layers=3", "--json", str(tmp_path / "p.json")]) == 0
    output = capsys.readouterr().out
    assert output.startswith("a GPU, recipe fast, 512 x 8: 10.0 ms a step\n")
    assert "matrix products                  8.00   80.0%       264\n" in output
    assert trials[0].held_layers == 3
    assert json.loads((tmp_path / "p.json").read_text())["shares"][0]["kind"] == "matrix products"


def test_a_decoding_step_is_recorded_with_adapters_on(capsys, tiny_model, tiny_data):
    argv = ["profile", "--suite", "inference", "--profile", "tiny", "--trial-name", "generate-nf4", "--adapters"]
    sizes = ("max_seq_len=16", "micro_batch_size=2", "new_tokens=6")
    argv += [word for size in sizes for word in ("--set", size)]
    assert main([*argv, "--model", str(tiny_model), "--data", str(tiny_data)]) == 0
    output = capsys.readouterr().out
    assert output.startswith(
        "cpu, recipe decoding with adapters (not the fused step of five kernels per layer: no GPU), 16 x 2: "
    )
    assert " tokens/s\n" in output.split(" ms a step, ")[1]
    assert "matrix products" in output
