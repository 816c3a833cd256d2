"""From a training to a server, as README types it, with a real small model:

    THOROUGH=1 REAL_MODEL=models/HuggingFaceTB--SmolLM2-135M-Instruct pytest tests/system/adapter/test_chain.py

takes half an hour on two busy cores. REAL_MODEL is a folder that `inv model.demo --real` made; without it the model is
made here. Real `inv`, kubectl, training, check and merge; the cluster is the tests' own, and `vllm` is plain
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
    "lora_rank": 8, "learning_rate": 0.002, "gradient_checkpointing": False, "sample_prompts": [QUESTION], "sample_max_new_tokens": 24,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pods see: the program `vllm`, and the model where it is made here."""
    folder = tmp_path_factory.mktemp("chain")
    folder.chmod(0o755)  # the pods run as another user
    (folder / "bin").mkdir()
    program = f'#!/bin/sh\nexec {sys.executable} -m tests.support.machines.plain_vllm "$@"\n'
    (folder / "bin" / "vllm").write_text(program)
    (folder / "bin" / "vllm").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def inputs(place: Path) -> tuple[Path, Path]:
    """The model's folder, and a few of the orders to learn from."""
    model, data = Path(os.environ.get("REAL_MODEL", place / "models" / "smollm2")).resolve(), place / "orders.jsonl"
    words = (sys.executable, "-m", "bench", "demo", "--real", "--model", str(model), "--data", str(data))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode != 0:
        pytest.skip(f"the real model is not to be had here: {done.stderr.strip().splitlines()[-1]}")
    data.write_text("".join(data.read_text().splitlines(keepends=True)[:LINES]))
    return model, data


@pytest.fixture(scope="module")
def serving_cluster(place: Path, inputs: tuple[Path, Path]) -> Iterator[Cluster]:
    path = f"{place / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    image = {"PATH": path, "PYTHONPATH": str(ROOT)}
    with Cluster(nodes=1, image_paths=(place, inputs[0].parent), image_environment=image) as cluster:
        cluster.patience_sec = 1200.0  # a server loads its model
        yield cluster


@pytest.fixture
def somebody(
    serving_cluster: Cluster, inputs: tuple[Path, Path], tmp_path: Path, inv_server: ForkServer
) -> Iterator[Operator]:
    """Who trains on one worker of this machine, and serves in the cluster."""
    operator = make_operator(serving_cluster, tmp_path, inv_server)
    operator.settings |= {
        "model": {"path": str(inputs[0])},
        "data": {"path": str(inputs[1])},
        "train": TRAIN,
        "fleet": {"kind": "local", "size": 1, "workspace": str(ROOT)},
        "serve": {"image": f"docker.io/vllm/vllm-openai@{DIGEST}"},
    }
    operator.set(scratch="1Gi", memory="2Gi")
    yield operator
    operator.inv("teardown", "--yes", "--discard-results")


def test_what_was_trained_is_what_is_served(somebody: Operator) -> None:
    somebody.inv("train")
    assert "Held-out loss" in somebody.inv("collect", "report")
    run = (somebody.results / "latest").resolve()
    assert "Held-out loss" in (run / "report" / "index.html").read_text()

    assert "as it was trained" in somebody.inv("adapter.check", "--answers=4")
    said = somebody.inv("adapter.merge", "--base=nf4", "adapter.check", "--answers=4")
    assert "the merged folder" in said
    found = {one["name"]: one for one in json.loads((run / "adapter-check.json").read_text())["forms"]}
    (recorded,) = [
        one["loss"] for one in json.loads((run / "training.json").read_text())["evaluations"] if one["is_best"]
    ][-1:]
    assert found["trained"]["loss"] == pytest.approx(recorded, abs=0.002)
    assert found["folder"]["loss"] == pytest.approx(found["merged-nf4"]["loss"], abs=1e-6), (
        "the files are what was merged"
    )
    folder = found["folder"]
    assert folder["change_low"] <= 0.0 <= folder["change_high"] or abs(folder["change"]) < 0.002, "plain transformers"

    assert "read back and verified" in somebody.inv("adapter.push", f"--folder={somebody.project / 'home'}")
    asked = somebody.inv("chat", "adapter", stdin=f"{QUESTION}\n")
    assert asked.strip()
    said = somebody.inv("serve", "serve.check", "cluster", "chat", "cluster", stdin=f"{PASSWORD}\n{QUESTION}\n")
    assert f"serving run {run.name} as tuned" in said
    assert f"answers as run {run.name} did" in said
    assert said.splitlines()[-1].strip()
    somebody.inv("serve.stop")
