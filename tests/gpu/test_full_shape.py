"""The published trials at full size on a real GPU: a model of Mistral-7B-Instruct-v0.3's shape with random weights.

Speed and memory depend on shapes, not on values, so random weights measure what the real ones would; the loss means
nothing here beyond being a number. Where neither pytest's plugins nor this project's settings are at hand:

    python -m pytest -c /dev/null --rootdir . --import-mode=importlib -s tests/gpu
"""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from bench.result import End, TrialResult, sha256_of
from bench.trial import suite

ROOT = Path(__file__).resolve().parents[2]
CONFIG: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32768,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
PARAMETERS = 7_248_023_552
TENSORS_PER_SHARD = 36  # four layers, 1.7 GB
DISK_BYTES = 20 << 30
TRIAL_SEC = 900.0

DRIVER = Path("/dev/nvidiactl")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not DRIVER.exists(), reason=f"no NVIDIA GPU: {DRIVER} is missing"),
]


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, vocabulary = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    key = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    for index in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (hidden, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (key, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (key, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, hidden)
        yield f"{layer}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.up_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    yield "lm_head.weight", (vocabulary, hidden)


def write_model(folder: Path, device: str) -> None:
    """Shard by shard, four at a time, each made on the GPU: 14.5 GB in well under a minute."""
    import torch
    from safetensors.torch import save_file

    def tensor(shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        return (torch.randn(shape, dtype=torch.bfloat16, device=device) * 0.02).cpu()

    def write(number: int, part: list[tuple[str, tuple[int, ...]]]) -> dict[str, str]:
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        save_file({name: tensor(shape) for name, shape in part}, folder / file, metadata={"format": "pt"})
        return {name: file for name, _ in part}

    torch.manual_seed(0)
    tensors = list(shapes())
    parts = [tensors[start : start + TENSORS_PER_SHARD] for start in range(0, len(tensors), TENSORS_PER_SHARD)]
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with ThreadPoolExecutor(4) as pool:
        placed = dict(chain.from_iterable(part.items() for part in pool.map(write, range(1, len(parts) + 1), parts)))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
        files = sorted(path for path in folder.iterdir() if path.is_file())
        sums = pool.map(sha256_of, files)
        lines = [f"{digest}  {path.name}\n" for digest, path in zip(sums, files, strict=True)]
    (folder / "SHA256SUMS").write_text("".join(lines))
    torch.cuda.empty_cache()  # the trials' processes measure with the card to themselves


@pytest.fixture(scope="module")
def full_model(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("models") / "random--mistral-7b-shape"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / name, folder)
    write_model(folder, "cuda")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module", autouse=True)
def _gpu(tmp_path_factory: pytest.TempPathFactory) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    if shutil.disk_usage(tmp_path_factory.getbasetemp()).free < DISK_BYTES:
        pytest.skip(f"the model needs {DISK_BYTES >> 30} GiB of free disk")


@pytest.fixture
def measure(full_model: Path, tiny_data: Path, tmp_path: Path, capfd) -> Callable[[str], TrialResult]:
    def run(name: str) -> TrialResult:
        (trial,) = (t for t in suite("quick", "gpu", str(full_model), str(tiny_data)) if t.trial_id == name)
        (tmp_path / "trial.json").write_text(json.dumps(trial.to_json()))
        words = ("run", "--trial", str(tmp_path / "trial.json"), "--out", str(tmp_path / "out"))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        with capfd.disabled():
            subprocess.run((sys.executable, "-m", "bench", *words), env=environment, timeout=TRIAL_SEC, check=False)
            result = TrialResult.read(tmp_path / "out" / "result.json")
            print(json.dumps({"phases": result.phases, "fingerprint": result.fingerprint}))
            print(json.dumps(json.loads((tmp_path / "out" / "result.json").read_text())["metrics"]), flush=True)
        return result

    return run


@pytest.mark.parametrize("name", ["baseline", "optimized"])
def test_a_published_trial_succeeds_at_full_size(measure, name):
    result = measure(name)
    assert (result.status, result.reason) == (End.SUCCEEDED, None)
    assert all(loss is not None and 0 < loss < 2 * math.log(CONFIG["vocab_size"]) for loss in result.steps.loss)
    assert result.metrics is not None
    assert result.metrics.peak_vram_bytes is not None
    assert result.metrics.peak_vram_bytes > PARAMETERS // 2  # four bits a parameter, and then some
    assert result.fingerprint["model_parameters"] == PARAMETERS
    assert (result.fingerprint["device"], result.fingerprint["compute_dtype"]) == ("cuda", "bfloat16")
    assert result.fingerprint["optimizer"] == "bitsandbytes AdamW, 8 bit, paged"
    assert result.fingerprint["gpu_name"]
    assert result.fingerprint["gpu_driver"]
