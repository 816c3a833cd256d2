"""Test of the README's commands from a training to a server, with a real small model:

    THOROUGH=1 REAL_VLLM=VENV REAL_MODEL=models/HuggingFaceTB--SmolLM2-135M-Instruct \\
        pytest tests/system/adapter/test_chain.py

takes a quarter of an hour on two busy cores. REAL_MODEL is a folder of `inv model.demo --real`; without it the test
creates the model. conftest.py says what VENV is. Not covered: a GPU; a server in a cluster.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT
from tests.support.thorough import only_thorough
from tests.system import conftest
from tests.system.conftest import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), only_thorough]
LINES = 60
TRAIN = {
    "max_seq_len": 160, "validation_fraction": 0.1, "micro_batch_size": 1, "rows_per_step": 2, "max_steps": 12,
    "lora_rank": 8, "learning_rate": 0.002, "gradient_checkpointing": False,
}  # fmt: skip
VLLM_FLAGS = ("--dtype", "bfloat16", "--max-model-len", "1024", "--enforce-eager")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the model's folder, and a file with a few orders as training data."""
    folder = tmp_path_factory.mktemp("inputs")
    model, data = Path(os.environ.get("REAL_MODEL", folder / "smollm2")).resolve(), folder / "orders.jsonl"
    argv = (sys.executable, "-m", "bench", "demo", "--real", "--model", str(model), "--data", str(data))
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode != 0:
        pytest.skip(f"the real model is not available: {done.stderr.strip().splitlines()[-1]}")
    data.write_text("".join(data.read_text().splitlines(keepends=True)[:LINES]))
    return model, data


@pytest.fixture
def project(bare_project: Project, inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(conftest, "WAIT_SEC", 1800.0)
    settings = {
        "model": {"path": str(inputs[0])},
        "data": {"path": str(inputs[1])},
        "train": TRAIN,
        "fleet": {"kind": "local", "size": 1},
    }
    (bare_project.folder / "own.yaml").write_text(yaml.safe_dump(settings))
    bare_project.options = ("-f", "own.yaml")
    bare_project.environment["INVOKE_FLEET_SIZE"] = "1"
    return bare_project


def test_what_was_trained_is_what_is_served(
    project: Project, inputs: tuple[Path, Path], serve_vllm: Callable[..., str]
) -> None:
    project.inv("train")
    project.inv("collect", "report")
    run = project.run_folder()
    assert "Held-out loss" in (run / "report" / "index.html").read_text()
    project.inv("adapter.check", "--answers=4")
    project.inv("adapter.merge", "--base=nf4", "adapter.check", "--answers=4")
    forms = {form["name"]: form for form in json.loads((run / "adapter-check.json").read_text())["forms"]}
    evaluations = json.loads((run / "training.json").read_text())["evaluations"]
    recorded = [evaluation["loss"] for evaluation in evaluations if evaluation["is_best"]][-1]
    assert forms["trained"]["loss"] == pytest.approx(recorded, abs=0.002)
    folder = forms["folder"]
    assert folder["loss"] == pytest.approx(forms["merged-nf4"]["loss"], abs=1e-6), "the files have the merged weights"
    assert folder["change_low"] <= 0.0 <= folder["change_high"] or abs(folder["change"]) < 0.002

    served = (str(inputs[0]), "--tokenizer", str(run / "adapter"), "--enable-lora", "--max-lora-rank", "8")
    url = serve_vllm(*served, "--lora-modules", f"tuned={run / 'adapter'}", "--served-model-name", "base", *VLLM_FLAGS)
    assert f"answers like run {run.name}" in project.inv("serve.check", url, "--model=tuned").stdout
    project.inv("serve.check", url, "--model=base", code=1)
    url = serve_vllm(str(run / "merged"), "--served-model-name", "tuned", *VLLM_FLAGS)
    assert f"answers like run {run.name}" in project.inv("serve.check", url).stdout
