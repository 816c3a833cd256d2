"""The published trials at full size on a real GPU: a model of Mistral-7B-Instruct-v0.3's shape with random weights.

The loss has no meaning here, it only has to be finite. Without pytest's plugins and this project's settings:

    python -m pytest -c /dev/null --rootdir . --import-mode=importlib -s tests/gpu
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.records import suite
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from tests.model_shapes import MISTRAL_7B as CONFIG
from tests.model_shapes import SHAPES, write
from tests.support.gpu import on_gpu, run_trial

DISK_BYTES = 20 << 30
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800), on_gpu, pytest.mark.usefixtures("_cuda")]


@pytest.fixture(scope="module")
def full_model(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("models") / "random--mistral-7b-shape"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / name, folder)
    write(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module", autouse=True)
def _free_disk(tmp_path_factory: pytest.TempPathFactory) -> None:
    if shutil.disk_usage(tmp_path_factory.getbasetemp()).free < DISK_BYTES:
        pytest.skip(f"the model needs {DISK_BYTES >> 30} GiB of free disk")


@pytest.fixture
def measure(full_model: Path, demo_data: Path, tmp_path: Path, capfd) -> Callable[[str], TrialResult]:
    def run(name: str) -> TrialResult:
        (trial,) = (t for t in suite("quick", "gpu", str(full_model), str(demo_data)) if t.trial_id == name)
        with capfd.disabled():
            result = run_trial(trial, tmp_path, limit_sec=900.0)
            print(json.dumps({"phases": result.phases, "fingerprint": result.fingerprint}))
            print(json.dumps(json.loads((tmp_path / "out" / "result.json").read_text())["metrics"]), flush=True)
        return result

    return run


@pytest.mark.parametrize("name", ["baseline", "optimized"])
def test_a_published_trial_succeeds_at_full_size(measure, name):
    result = measure(name)
    assert (result.status, result.reason) == (TrialStatus.SUCCEEDED, None)
    assert all(loss is not None and 0 < loss < 2 * math.log(CONFIG["vocab_size"]) for loss in result.steps.loss)
    assert result.metrics is not None
    assert result.metrics.peak_vram_bytes is not None
    assert result.metrics.peak_vram_bytes > SHAPES["mistral-7b"].parameters // 2  # more than four bits per parameter
    assert result.fingerprint["model_parameters"] == SHAPES["mistral-7b"].parameters
    assert (result.fingerprint["device"], result.fingerprint["compute_dtype"]) == ("cuda", "bfloat16")
    assert result.fingerprint["optimizer"] == "bitsandbytes AdamW, 8 bit, paged"
    assert result.fingerprint["gpu_name"]
    assert result.fingerprint["gpu_driver"]
