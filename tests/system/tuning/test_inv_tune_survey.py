"""A search is only resumed on the same GPU model, so that figures of two models are not ranked in one table.

The GPU is a fake of NVIDIA's library, which the worker's process imports instead of the real one; nothing computes.
"""

import shutil

import pytest

from tasks.tuning import search_state
from tasks.tuning.search_state import TuneRecord
from tests.support.paths import ROOT

FAKES = ROOT / "tests" / "support" / "fakes"
pytestmark = [pytest.mark.slow]


@pytest.mark.parametrize(
    ("gpus", "now"), [('[{"uuid": "GPU-1"}]', "NVIDIA H200"), ("[]", "None")], ids=["another GPU", "no GPU"]
)
def test_a_search_started_on_one_gpu_model_is_not_resumed_on_another(project, gpus: str, now: str) -> None:
    shutil.copy(FAKES / "pynvml.py", project.folder)
    begun = search_state.create(
        project.folder / "results",
        TuneRecord(
            tune_id="20261121-000000-tune",
            gpu="NVIDIA A10",
            model_sha256="m",
            data_sha256="d",
            longest=512,
            depth=32,
            limit_bytes=20 << 30,
            settings={},
            candidates=(),
        ),
    )
    before = sorted((project.folder / "results" / "tune").rglob("*"))
    message = project.inv_error("tune", "--resume", code=4, FAKE_NVML=gpus, CUDA_VISIBLE_DEVICES="0")
    assert message.startswith(f"search {begun.tune_id}: ")
    assert "NVIDIA A10" in message
    assert f" {now} " in message
    assert "`inv tune`" in message
    assert sorted((project.folder / "results" / "tune").rglob("*")) == before
