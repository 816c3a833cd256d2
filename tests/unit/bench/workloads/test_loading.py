"""Loading: memory, flags, and the files that are read."""

import json
import shutil
from typing import Any

import pytest

from bench.data.model_folder import weight_files
from bench.workloads import loading
from bench.workloads.loading import LoadResult
from tests.support.recorded_result import InMemoryRecord


@pytest.fixture
def record(make_trial) -> Any:
    return InMemoryRecord(make_trial(kind="loading"), gpu_memory_bytes=1000)


def make_load(**changes: int) -> LoadResult:
    return LoadResult(
        **({"seconds": 2.0, "device_bytes": 250, "device_peak_bytes": 300, "leftover_bytes": 0} | changes)
    )


def test_the_weights_are_the_single_file_or_those_in_the_index(model_folder, tmp_path):
    (model_folder / "consolidated.safetensors").touch()  # a copy of the weights, which some publishers add
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"b": "2", "a": "1", "c": "2"}}))
    shutil.copy(tmp_path / "model.safetensors.index.json", model_folder)
    assert weight_files(model_folder) == (model_folder / "model.safetensors",)
    assert weight_files(tmp_path) == (tmp_path / "1", tmp_path / "2")


def test_memory_is_of_the_last_load_and_the_largest_leftover_may_be_a_flag(record):
    loading.add_memory(record, [make_load(leftover_bytes=5), make_load()])
    assert record.find("device_memory_bytes")[0]["value"] == 250
    assert record.find("device_memory_share_percent")[0]["value"] == 25.0
    assert record.find("device_memory_leftover_bytes")[0]["value"] == 5
    assert record.flags == []
    loading.add_memory(record, [make_load(leftover_bytes=loading.LEFTOVER_BYTES + 1)])
    (flag,) = record.flags
    assert flag.startswith("67,108,865 bytes ")


def test_without_a_gpu_its_memory_is_unknown_not_zero(record):
    loading.add_memory(record, [LoadResult(seconds=2.0)])
    for name in ("bytes", "share_percent", "peak_bytes", "leftover_bytes"):
        (entry,) = record.find(f"device_memory_{name}")
        assert (entry["value"], entry["note"]) == (None, "no CUDA device")
