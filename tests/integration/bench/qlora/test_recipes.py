"""What of this subject starts a process."""

import json

import pytest

# `stack.load` silences the first for a process; pytest takes that back for every test.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


def test_the_result_says_which_recipe_ran(tmp_path, make_trial, tiny_model, tiny_data, bench_environment):
    import subprocess
    import sys

    trial = make_trial(model=str(tiny_model), data=str(tiny_data), recipe="fast", layout="varlen", max_seq_len=64)
    (tmp_path / "trial.json").write_text(trial.to_text())
    words = ("run", "--trial", str(tmp_path / "trial.json"), "--out", str(tmp_path / "out"))
    subprocess.run((sys.executable, "-m", "bench", *words), env=bench_environment, timeout=240, check=True)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["fingerprint"]["recipe"] == "fast"
    assert result["metrics"]["padding_percent"] < 25
