"""Loading, cold and warm: page cache contents, notes if it cannot be dropped, and flags."""

import errno
import json
import os
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from bench.data.model_folder import weight_files
from bench.machine import page_cache
from bench.workloads import loading
from bench.workloads.loading import CacheDrop, Loading, LoadResult
from tests.support.faults import raising
from tests.support.recorded_result import InMemoryRecord

BIG = 1 << 20


@pytest.fixture
def bench(make_trial, tmp_path) -> Loading:
    (tmp_path / "model.safetensors").write_bytes(bytes(BIG))
    session: Any = SimpleNamespace(placement=SimpleNamespace(is_cuda=False))
    stops: Any = SimpleNamespace(check=lambda: None)
    record: Any = InMemoryRecord(make_trial(kind="loading"), gpu_memory_bytes=1000)
    return Loading(record=record, session=session, files=(tmp_path / "model.safetensors",), stops=stops)


def make_load(**changes: Any) -> LoadResult:
    fields: dict[str, Any] = {
        "seconds": 2.0,
        "device_bytes": 250,
        "device_peak_bytes": 300,
        "host_peak_bytes": 70,
        "leftover_bytes": 0,
    }
    return LoadResult(**(fields | changes))


def test_the_resident_share_is_of_probed_pages_and_unknown_without_such_reads(tmp_path, monkeypatch):
    read, empty = tmp_path / "read", tmp_path / "empty"
    read.write_bytes(os.urandom(BIG))
    empty.touch()
    assert page_cache.read_all([read]) == BIG
    assert page_cache.resident_share([read, empty]) == 1.0
    assert page_cache.resident_share([empty]) is None
    monkeypatch.setattr(os, "preadv", raising(BlockingIOError()))
    assert page_cache.resident_share([read]) == 0.0
    monkeypatch.setattr(os, "preadv", raising(OSError(errno.EOPNOTSUPP, "not supported")))
    assert page_cache.resident_share([read]) is None


def test_dropping_does_not_change_the_content(tmp_path):
    content = os.urandom(BIG)
    (tmp_path / "file").write_bytes(content)
    page_cache.drop([tmp_path / "file"])
    assert (tmp_path / "file").read_bytes() == content


def test_the_weights_are_the_single_file_or_those_in_the_index(model_folder, tmp_path):
    (model_folder / "consolidated.safetensors").touch()  # a copy of the weights, which some publishers add
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"b": "2", "a": "1", "c": "2"}}))
    shutil.copy(tmp_path / "model.safetensors.index.json", model_folder)
    assert weight_files(model_folder) == (model_folder / "model.safetensors",)
    assert weight_files(tmp_path) == (tmp_path / "1", tmp_path / "2")


@pytest.mark.parametrize(
    ("share", "refused", "verified", "note"),
    [
        (0.0, False, True, None),
        (0.01, False, True, None),
        (1.0, True, False, "100 % of their pages stayed"),
        (None, False, False, "cannot be verified"),
    ],
)
def test_a_drop_reports_its_result(share, refused, verified, note):
    drop = CacheDrop(resident_share=share)
    assert drop.is_refused is refused
    assert drop.context()["drop_verified"] is verified
    assert drop.note is None if note is None else note in str(drop.note)


def test_a_page_cache_that_keeps_the_files_gives_no_cold_number(bench, monkeypatch):
    monkeypatch.setattr(page_cache, "drop", lambda _: 1.0)
    assert bench.measure_cold() == []
    (entry,) = bench.record.added
    assert (entry["name"], entry["value"], entry["cache"]) == ("load_time_sec", None, "cold")
    assert "100 %" in entry["note"]


def test_a_drop_that_cannot_be_verified_is_measured_and_marked(bench, monkeypatch):
    monkeypatch.setattr(page_cache, "drop", lambda _: None)
    monkeypatch.setattr(Loading, "load", lambda _: make_load())
    assert bench.measure_cold() == [make_load()]
    (entry,) = bench.record.added
    assert (entry["value"], entry["drop_verified"], entry["resident_percent"]) == (2.0, False, None)


def test_memory_is_of_the_last_load_and_the_largest_leftover_may_be_a_flag(bench):
    bench.add_memory([make_load(leftover_bytes=5, host_peak_bytes=90), make_load()])
    record = bench.record
    assert record.find("device_memory_bytes")[0]["value"] == 250
    assert record.find("device_memory_share_percent")[0]["value"] == 25.0
    assert record.find("device_memory_leftover_bytes")[0]["value"] == 5
    assert record.find("host_memory_peak_bytes")[0]["value"] == 90
    assert record.flags == []
    bench.add_memory([make_load(leftover_bytes=loading.LEFTOVER_BYTES + 1)])
    (flag,) = bench.record.flags
    assert flag.startswith("67,108,865 bytes ")


def test_without_a_gpu_its_memory_is_unknown_not_zero(bench):
    none = dict.fromkeys(("device_bytes", "device_peak_bytes", "leftover_bytes", "host_peak_bytes"))
    bench.add_memory([make_load(**none)])
    for name in ("bytes", "share_percent", "peak_bytes", "leftover_bytes"):
        (entry,) = bench.record.find(f"device_memory_{name}")
        assert (entry["value"], entry["note"]) == (None, "no CUDA device")
    assert "process" in bench.record.find("host_memory_peak_bytes")[0]["note"]


def test_a_system_that_cannot_reset_its_peak_is_detected(monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "CLEAR_REFS", tmp_path / "none" / "clear_refs")
    assert loading.reset_host_peak() is False
    monkeypatch.setattr(loading, "STATUS", tmp_path / "status")
    (tmp_path / "status").write_text("VmPeak:\t  9999 kB\nVmHWM:\t   11452 kB\nVmRSS:\t  1 kB\n")
    assert loading.host_peak_bytes() == 11452 * 1024
