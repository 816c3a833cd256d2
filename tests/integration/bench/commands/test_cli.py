"""Commands of `python -m bench` in a separate process."""

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from tests.support.paths import ROOT


def bench(*arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, *options, "-m", "bench", *arguments)
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_line_starts_with_the_standard_library_alone():
    program = "import sys, bench.commands.cli; print(*sys.modules)"
    argv = (sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {program}")
    loaded = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert {name.partition(".")[0] for name in loaded} <= {*sys.stdlib_module_names, "__main__", "bench"}


def test_inspect_does_not_import_the_stack(model_folder: Path, data_file: Path):
    options = ("-X", "importtime")
    completed = bench("inspect", "--model", str(model_folder), "--data", str(data_file), options=options)
    imported = {line.rpartition("|")[2].strip() for line in completed.stderr.splitlines()}
    assert completed.returncode == 0
    assert "safetensors" in imported
    assert not imported & {"torch", "transformers"}


def test_run_refuses_a_trial_file_with_an_unknown_key(tmp_path: Path, make_trial):
    (tmp_path / "t.json").write_text(json.dumps(make_trial().to_json() | {"sede": 1}))
    completed = bench("run", "--trial", str(tmp_path / "t.json"), "--out", str(tmp_path / "out"))
    assert completed.returncode == 2
    assert completed.stderr.startswith(f"{tmp_path / 't.json'}: sede: unknown field; ")


def test_run_never_overwrites_a_finished_result(tmp_path: Path, make_trial):
    finished = TrialResult(trial_id="done", trial=make_trial(), status=TrialStatus.SUCCEEDED, reason=None)
    before = finished.write(tmp_path).read_bytes()
    (tmp_path / "t.json").write_text(json.dumps(make_trial().to_json()))
    completed = bench("run", "--trial", str(tmp_path / "t.json"), "--out", str(tmp_path))
    assert completed.returncode == 2
    assert completed.stderr.startswith(f"{tmp_path / 'result.json'}: ")
    assert "'done'" in completed.stderr
    assert (tmp_path / "result.json").read_bytes() == before


def test_a_broken_pipe_exits_like_sigpipe():
    reader, writer = os.pipe()
    os.close(reader)
    argv = (sys.executable, "-m", "bench", "sample")
    with open(writer, "wb") as broken_pipe:
        completed = subprocess.run(argv, cwd=ROOT, stdout=broken_pipe, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (completed.returncode, completed.stderr) == (141, b"")
