"""What of this subject starts a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.records.result import TrialResult, TrialStatus
from tests.support.paths import ROOT


def bench(*words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, *options, "-m", "bench", *words)
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_inspect_needs_the_standard_library_alone(model_folder: Path, data_file: Path):
    # -S leaves site-packages out: whatever is imported from there would not be found.
    done = bench("inspect", "--model", str(model_folder), "--data", str(data_file), options=("-S",))
    assert (done.returncode, done.stderr) == (0, "")


def test_run_refuses_a_trial_file_with_an_unknown_key(tmp_path: Path, make_trial):
    (tmp_path / "t.json").write_text(json.dumps(make_trial().to_json() | {"sede": 1}))
    done = bench("run", "--trial", str(tmp_path / "t.json"), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"{tmp_path / 't.json'}: sede: unknown field; the fields are name,")


def test_run_never_overwrites_a_finished_result(tmp_path: Path, make_trial):
    finished = TrialResult(trial_id="done", trial=make_trial(), status=TrialStatus.SUCCEEDED, reason=None)
    before = finished.write(tmp_path).read_bytes()
    (tmp_path / "t.json").write_text(json.dumps(make_trial().to_json()))
    done = bench("run", "--trial", str(tmp_path / "t.json"), "--out", str(tmp_path))
    assert done.returncode == 2
    assert "holds the finished result of 'done', which is never overwritten" in done.stderr
    assert (tmp_path / "result.json").read_bytes() == before


def test_output_that_nobody_reads_ends_it_as_sigpipe_would():
    reader, writer = os.pipe()
    os.close(reader)
    argv = (sys.executable, "-m", "bench", "list")
    with open(writer, "wb") as unread:
        ended = subprocess.run(argv, cwd=ROOT, stdout=unread, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (141, b"")
