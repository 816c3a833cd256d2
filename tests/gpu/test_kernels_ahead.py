"""A training on this GPU compiles nothing that `python -m bench kernels` has compiled for its architecture.

    python -m pytest -c /dev/null --rootdir . --import-mode=importlib tests/gpu/test_kernels_ahead.py

The compilation sees no GPU. Not covered: other architectures, whose kernels only compile here (test_kernels_fit.py).
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is installed only where there is a GPU")

from bench import torch_stack
from bench.kernels.cache import KERNELS_VARIABLE, MANAGER
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from tests.support import tiny_training
from tests.support.gpu import environment, on_gpu
from tests.support.paths import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), on_gpu]


@pytest.mark.parametrize("matmul", ["bf16", "int8"])
def test_a_training_compiles_nothing_that_was_compiled_for_it(tmp_path: Path, matmul: str) -> None:
    stack = torch_stack.load()
    model = tiny_training.make_folder(stack, tmp_path / "models" / "tiny", width=256)
    data = tiny_training.make_data(tmp_path / "chats.jsonl")
    architecture = "{}.{}".format(*stack.torch.cuda.get_device_capability())
    seeds, cache = tmp_path / "seeds", tmp_path / "cache"
    run("kernels", "--models", str(model.parent), "--archs", architecture, "--out", str(seeds), CUDA_VISIBLE_DEVICES="")
    inputs = ("--suite", "quick", "--trial-name", "train", "--model", str(model), "--data", str(data))
    variables = {"TRITON_CACHE_DIR": str(cache), "TRITON_CACHE_MANAGER": MANAGER, KERNELS_VARIABLE: str(seeds)}
    run("run", *inputs, "--out", str(tmp_path / "out"), "--set", f"matmul={matmul}", **variables)
    result = TrialResult.read(tmp_path / "out" / "result.json")
    assert result.status is TrialStatus.SUCCEEDED
    assert result.fingerprint["recipe"] == "fast"
    used = {path.name for path in cache.iterdir()}
    assert len(used) > 10
    assert used - {path.name for path in seeds.iterdir()} == set()


def run(*arguments: str, **variables: str) -> None:
    argv = (sys.executable, "-m", "bench", *arguments)
    subprocess.run(argv, env=environment() | variables, cwd=ROOT, timeout=300, check=True)
