"""A search goes on where it began: figures of two GPUs, models or data sets are not ranked in one table."""

from __future__ import annotations

from typing import Any

import pytest

from tasks import tune
from tasks.errors import Refused
from tasks.tuning.record import TuneRecord


def search(gpu: str | None) -> TuneRecord:
    return TuneRecord(
        tune_id="20261121-000000-tune",
        gpu=gpu,
        model_sha256="m",
        data_sha256="d",
        longest=512,
        limit_bytes=None,
        settings={},
        candidates=(),
    )


def ground(gpu: str | None, model: str = "m", data: str = "d") -> dict[str, Any]:
    return {"gpu": gpu and {"name": gpu, "memory_bytes": 1}, "model": {"sha256": model}, "data": {"sha256": data}}


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (ground("NVIDIA A100-SXM4-80GB"), "the GPU was NVIDIA A10, and is NVIDIA A100-SXM4-80GB now"),
        (ground(None), "the GPU was NVIDIA A10, and is None now"),
        (ground("NVIDIA A10", model="other"), r"the model \(sha256\) was m, and is other now"),
        (ground("NVIDIA A10", data="other"), r"the data \(sha256\) was d, and is other now"),
    ],
)
def test_a_search_is_not_gone_on_with_elsewhere(now, says):
    with pytest.raises(Refused, match=f"search 20261121-000000-tune: {says}.*begin a new search with `inv tune`") as no:
        tune._refuse_other_ground(search("NVIDIA A10"), now)
    assert no.value.code == 4


def test_a_search_goes_on_where_it_began():
    tune._refuse_other_ground(search("NVIDIA A10"), ground("NVIDIA A10"))
    tune._refuse_other_ground(search(None), ground("NVIDIA A10"))  # profile tiny measures the CPU
