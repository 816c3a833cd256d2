"""Fixtures of a chain from a training to a server: a real small model, its data, an operator who trains on them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import ForkServer
from tests.support.kubernetes import Cluster
from tests.support.paths import ROOT
from tests.system.cluster.conftest import DIGEST, Operator, make_operator

STEPS, LINES, QUESTION = 12, 60, "What is the capital of France?"
TRAIN = {
    "max_seq_len": 160, "validation_fraction": 0.1, "micro_batch_size": 1, "rows_per_step": 2, "max_steps": STEPS,
    "lora_rank": 8, "learning_rate": 0.002, "gradient_checkpointing": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the pods see."""
    folder = tmp_path_factory.mktemp("chain")
    folder.chmod(0o755)  # the pods run as another user
    (folder / "bin").mkdir()
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


@pytest.fixture
def make_trainer(inputs: tuple[Path, Path], tmp_path: Path, inv_server: ForkServer) -> Callable[..., Operator]:
    """Make an operator who trains on one worker of this machine, and serves in a cluster."""

    def make(cluster: Cluster, **serve: Any) -> Operator:
        operator = make_operator(cluster, tmp_path, inv_server)
        operator.settings |= {
            "model": {"path": str(inputs[0])},
            "data": {"path": str(inputs[1])},
            "train": TRAIN,
            "fleet": {"kind": "local", "size": 1, "workspace": str(ROOT)},
            "serve": {"image": f"docker.io/vllm/vllm-openai@{DIGEST}", **serve},
        }
        operator.set_cluster(scratch="1Gi", memory="4Gi", shm="512Mi")  # vLLM needs 160 MiB of /dev/shm
        return operator

    return make
