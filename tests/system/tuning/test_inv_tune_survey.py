"""A search goes on where it began: figures of two GPU models are not ranked in one table.

The GPU is a stand-in for NVIDIA's library, which the worker's own process finds before the real one; nothing computes.
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
def test_a_search_begun_on_one_gpu_model_is_not_gone_on_with_on_another(project, gpus: str, now: str) -> None:
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
    before = sorted(path for path in (project.folder / "results").rglob("*"))
    assert project.refused("tune", "--resume", code=4, FAKE_NVML=gpus, CUDA_VISIBLE_DEVICES="0") == (
        f"search {begun.tune_id}: the GPU was NVIDIA A10, and is {now} now; their figures cannot be ranked together: "
        "begin a new search with `inv tune`"
    )
    assert sorted(path for path in (project.folder / "results").rglob("*")) == before
