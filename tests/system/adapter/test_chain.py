"""Test of the README's commands from a training to a server, with a real small model:

    THOROUGH=1 REAL_MODEL=models/HuggingFaceTB--SmolLM2-135M-Instruct pytest tests/system/adapter/test_chain.py

takes half an hour on two busy cores. REAL_MODEL is a folder of `inv model.demo --real`; without it the test creates the
model. `inv`, kubectl, training, check and merge are real; the cluster is the tests' own, and `vllm` is plain
transformers behind its protocol (tests/support/machines/plain_vllm.py). Not covered: vLLM itself, a GPU.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked import ForkServer
from tests.support.kubernetes import Cluster
from tests.support.paths import ROOT
from tests.support.thorough import only_thorough
from tests.system.cluster.conftest import DIGEST, PASSWORD, Operator, make_operator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), only_thorough]
STEPS, LINES, QUESTION = 12, 60, "What is the capital of France?"
TRAIN = {
    "max_seq_len": 160, "validation_fraction": 0.1, "micro_batch_size": 1, "rows_per_step": 2, "max_steps": STEPS,
    "lora_rank": 8, "learning_rate": 0.002, "gradient_checkpointing": False,
    "sample_prompts": [QUESTION], "sample_max_new_tokens": 24,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the pods see, with the program `vllm` and a model that the test creates."""
    folder = tmp_path_factory.mktemp("chain")
    folder.chmod(0o755)  # the pods run as another user
    (folder / "bin").mkdir()
    program = f'#!/bin/sh\nexec {sys.executable} -m tests.support.machines.plain_vllm "$@"\n'
    (folder / "bin" / "vllm").write_text(program)
    (folder / "bin" / "vllm").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def inputs(shared_folder: Path) -> tuple[Path, Path]:
    """Return the model's folder, and a file with a few orders as training data."""
    model, data = (
        Path(os.environ.get("REAL_MODEL", shared_folder / "models" / "smollm2")).resolve(),
        shared_folder / "orders.jsonl",
    )
    argv = (sys.executable, "-m", "bench", "demo", "--real", "--model", str(model), "--data", str(data))
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode != 0:
        pytest.skip(f"the real model is not available: {done.stderr.strip().splitlines()[-1]}")
    data.write_text("".join(data.read_text().splitlines(keepends=True)[:LINES]))
    return model, data


@pytest.fixture(scope="module")
def serving_cluster(shared_folder: Path, inputs: tuple[Path, Path]) -> Iterator[Cluster]:
    path = f"{shared_folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    image = {"PATH": path, "PYTHONPATH": str(ROOT)}
    with Cluster(nodes=1, image_paths=(shared_folder, inputs[0].parent), image_environment=image) as cluster:
        cluster.patience_sec = 1200.0  # a server loads its model
        yield cluster


@pytest.fixture
def operator(
    serving_cluster: Cluster, inputs: tuple[Path, Path], tmp_path: Path, inv_server: ForkServer
) -> Iterator[Operator]:
    """Return an operator who trains on one worker of this machine, and serves in the cluster."""
    operator = make_operator(serving_cluster, tmp_path, inv_server)
    operator.settings |= {
        "model": {"path": str(inputs[0])},
        "data": {"path": str(inputs[1])},
        "train": TRAIN,
        "fleet": {"kind": "local", "size": 1, "workspace": str(ROOT)},
        "serve": {"image": f"docker.io/vllm/vllm-openai@{DIGEST}"},
    }
    operator.set_cluster(scratch="1Gi", memory="2Gi")
    yield operator
    operator.inv("teardown", "--yes", "--discard-results")


def test_what_was_trained_is_what_is_served(operator: Operator) -> None:
    operator.inv("train")
    assert "Held-out loss" in operator.inv("collect", "report")
    run = (operator.results / "latest").resolve()
    assert "Held-out loss" in (run / "report" / "index.html").read_text()

    assert "as trained" in operator.inv("adapter.check", "--answers=4")
    output = operator.inv("adapter.merge", "--base=nf4", "adapter.check", "--answers=4")
    assert "the merged folder" in output
    forms = {form["name"]: form for form in json.loads((run / "adapter-check.json").read_text())["forms"]}
    evaluations = json.loads((run / "training.json").read_text())["evaluations"]
    recorded = [evaluation["loss"] for evaluation in evaluations if evaluation["is_best"]][-1]
    assert forms["trained"]["loss"] == pytest.approx(recorded, abs=0.002)
    assert forms["folder"]["loss"] == pytest.approx(forms["merged-nf4"]["loss"], abs=1e-6), (
        "the files have the merged weights"
    )
    folder = forms["folder"]
    assert folder["change_low"] <= 0.0 <= folder["change_high"] or abs(folder["change"]) < 0.002, (
        "in plain transformers"
    )

    assert "read back and verified" in operator.inv("adapter.push", f"--folder={operator.project / 'home'}")
    answer = operator.inv("chat", "adapter", stdin=f"{QUESTION}\n")
    assert answer.strip()
    output = operator.inv("serve", "serve.check", "cluster", "chat", "cluster", stdin=f"{PASSWORD}\n{QUESTION}\n")
    assert f"run {run.name} as tuned" in output
    assert f"answers like run {run.name}" in output
    assert output.splitlines()[-1].strip()
    operator.inv("serve.stop")
