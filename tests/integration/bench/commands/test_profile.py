"""What of this subject starts a process."""

import json

from bench.commands import profile
from bench.commands.cli import main
from bench.commands.profile import StepProfile, sort_kernels


def test_the_command_prints_the_table_and_writes_the_same_as_json(monkeypatch, capsys, tmp_path, tiny_model, tiny_data):
    shares = sort_kernels([("nvjet", 8.0, 264)], 10.0)
    made = StepProfile(device="a GPU", recipe="fast", milliseconds=10.0, shares=shares, kernels=(("nvjet", 8.0),))
    asked = []
    monkeypatch.setattr(profile, "profile", lambda trial, **_: asked.append(trial) or made)
    words = ["profile", "--suite", "recipes", "--trial-name", "fast", "--model", str(tiny_model)]
    assert main([*words, "--data", str(tiny_data), "--set", "held_layers=3", "--json", str(tmp_path / "p.json")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("a GPU, recipe fast, 512 x 8: 10.0 ms a step\n")
    assert "matrix products                  8.00   80.0%       264\n" in said
    assert asked[0].held_layers == 3
    assert json.loads((tmp_path / "p.json").read_text())["shares"][0]["kind"] == "matrix products"


def test_a_decoding_step_is_recorded_with_adapters_on(capsys, tiny_model, tiny_data):
    words = ["profile", "--suite", "inference", "--profile", "tiny", "--trial-name", "generate-nf4", "--adapters"]
    sizes = ("max_seq_len=16", "micro_batch_size=2", "new_tokens=6")
    words += [word for size in sizes for word in ("--set", size)]
    assert main([*words, "--model", str(tiny_model), "--data", str(tiny_data)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "cpu, recipe decoding with adapters (not the step of five kernels a layer: no GPU), 16 x 2: "
    )
    assert " tokens/s\n" in said.split(" ms a step, ")[1]
    assert "matrix products" in said
