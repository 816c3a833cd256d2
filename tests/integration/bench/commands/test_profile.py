"""`python -m bench profile`: the table and the JSON file."""

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
