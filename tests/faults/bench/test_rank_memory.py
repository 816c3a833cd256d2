"""A real rank that runs out of memory: the trial names the rank, its peak, and settings to try.

Tested on the CPU with a limit on each process's address space; unit tests parse a GPU allocator's messages.
"""

import re
import sys
from pathlib import Path

import pytest

from bench.records.result import TrialResult
from bench.records.status import TrialStatus

LIMIT_BYTES = 3 << 30  # importing the stack takes 2 GiB
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux sets them")]


def test_a_rank_out_of_memory_ends_the_trial_with_its_name_and_peak(start_ranks, demo_data, tmp_path: Path):
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}))"
    large = {"data": str(demo_data), "max_seq_len": 4096, "micro_batch_size": 512}
    process = start_ranks(tmp_path, before=limit, **large)
    _, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (1, "")
    result = TrialResult.read(tmp_path / "result.json")
    assert result.status is TrialStatus.OUT_OF_MEMORY, result.reason
    reason = str(result.reason)
    assert re.match("[^;]*: rank [01]: ", reason)
    assert "micro_batch_size" in str(result.remedy)
    # The parent computes nothing and uses some 50 MB: the peak must be the rank's, which has the stack in memory.
    amount, unit = re.findall(r"peak RSS ([\d.]+) (MiB|GiB)", reason)[0]
    assert unit == "GiB" or float(amount) > 200
    assert list((tmp_path / "tmp").glob("qlora-fleet-*")) == []
