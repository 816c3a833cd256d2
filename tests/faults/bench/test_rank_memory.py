"""A real rank runs out of memory: the trial says which, what it had reached, and what to try next.

On the CPU, by a limit on each process's address space; what a GPU's allocator says is read in the unit tests.
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.records.result import End, TrialResult
from tests.support.forked import ForkServer

LIMIT_BYTES = 3 << 30  # importing the stack takes 2
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux sets them")]


def test_a_rank_out_of_memory_ends_the_trial_by_its_name_and_peak(
    bench_environment: Mapping[str, str], bench_server: ForkServer, make_trial, tiny_model, demo_data, tmp_path: Path
):
    fields = {"model": str(tiny_model), "data": str(demo_data), "max_seq_len": 4096, "micro_batch_size": 512}
    trial = make_trial(kind="distributed", world_size=2, **fields)
    (tmp_path / "trial.json").write_text(trial.to_text())
    limited = f"import resource, runpy; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES})); "
    limited += "runpy.run_module('bench', run_name='__main__')"
    run = ("run", "--trial", str(tmp_path / "trial.json"), "--out", str(tmp_path / "out"))
    (tmp_path / "tmp").mkdir()
    environment = {**bench_environment, "TMPDIR": str(tmp_path / "tmp")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with bench_server.start("-c", limited, *run, env=environment, **pipes) as process:
        _, complaint = process.communicate(timeout=240)
    assert (process.returncode, complaint) == (1, "")
    result = TrialResult.read(tmp_path / "out" / "result.json")
    assert result.status is End.OUT_OF_MEMORY, result.reason
    said = str(result.reason)
    assert said.startswith(("out of memory: rank 0: ", "out of memory: rank 1: "))
    assert " more were asked for; peak RSS " in said
    assert "next to try: micro_batch_size=256 gradient_accumulation_steps=2" in said
    # The parent computes nothing and holds some 50 MB: the peak must be the rank's, which has the stack in memory.
    peak = said.split("peak RSS ")[1].split(";")[0]
    assert peak.endswith("GiB") or float(peak.split()[0]) > 200
    assert list((tmp_path / "tmp").glob("qlora-fleet-*")) == []
