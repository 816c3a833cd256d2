"""A real rank runs out of memory: the trial says which, what it had reached, and what to try next.

On the CPU, by a limit on each process's address space; what a GPU's allocator says is read in the unit tests.
"""

import sys
from pathlib import Path

import pytest

from bench.records.result import TrialResult, TrialStatus

LIMIT_BYTES = 3 << 30  # importing the stack takes 2
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux sets them")]


def test_a_rank_out_of_memory_ends_the_trial_by_its_name_and_peak(start_ranks, demo_data, tmp_path: Path):
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}))"
    large = {"data": str(demo_data), "max_seq_len": 4096, "micro_batch_size": 512}
    process = start_ranks(tmp_path, before=limited, **large)
    _, complaint = process.communicate(timeout=240)
    assert (process.returncode, complaint) == (1, "")
    result = TrialResult.read(tmp_path / "result.json")
    assert result.status is TrialStatus.OUT_OF_MEMORY, result.reason
    said = str(result.reason)
    assert said.startswith(("out of memory: rank 0: ", "out of memory: rank 1: "))
    assert " more were requested; peak RSS " in said
    assert "next to try: micro_batch_size=256 gradient_accumulation_steps=2" in said
    # The parent computes nothing and holds some 50 MB: the peak must be the rank's, which has the stack in memory.
    peak = said.split("peak RSS ")[1].split(";")[0]
    assert peak.endswith("GiB") or float(peak.split()[0]) > 200
    assert list((tmp_path / "tmp").glob("qlora-fleet-*")) == []
