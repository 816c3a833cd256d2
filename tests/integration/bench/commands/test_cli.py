"""Commands of `python -m bench` in a separate process."""

import os
import subprocess
import sys
from pathlib import Path

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


def test_a_broken_pipe_exits_like_sigpipe():
    reader, writer = os.pipe()
    os.close(reader)
    argv = (sys.executable, "-m", "bench", "sample")
    with open(writer, "wb") as broken_pipe:
        completed = subprocess.run(argv, cwd=ROOT, stdout=broken_pipe, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (completed.returncode, completed.stderr) == (141, b"")
