"""Lines about a long installation, and its exit code."""

import sys
from pathlib import Path

import pytest

from tasks.cli import pip_progress
from tasks.cli.pip_progress import Progress, run

OUTPUT = """Collecting torch>=2.10 (from qlora-fleet==1.0.0)
  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (29 kB)
Processing {wheel} (from qlora-fleet==1.0.0)
Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (104.5 MB)
Using cached pandas-3.1.1-cp311-cp311-manylinux_2_28_x86_64.whl (12.4 MB)

Installing collected packages: torch, numpy, pandas
  Attempting uninstall: numpy
"""


def test_packages_and_bytes_are_counted_as_pip_prints_them(tmp_path: Path) -> None:
    wheel, progress = tmp_path / "numpy-2.4.6-py3-none-any.whl", Progress()
    wheel.write_bytes(b"0" * 100_000)
    for line in OUTPUT.format(wheel=wheel).splitlines():
        progress.read_line(line)
    assert (progress.packages, round(progress.bytes)) == (3, 117_000_000)
    assert (progress.is_writing, progress.text) == (True, "3 packages, 117 MB: writing 3 packages to the disk")


def test_what_a_long_program_does_is_logged_and_its_exit_code_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pip_progress, "SLOW_SEC", 0.0)
    go_on, lines = tmp_path / "go on", list[str]()
    program = (
        "import pathlib, time; print('Collecting torch', flush=True)\n"
        f"while not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.01)\n"
        "raise SystemExit(3)"
    )

    def log(line: str) -> None:
        lines.append(line.partition("] ")[2])
        if lines[-1] == "Collecting torch" and any(pip_progress.OTHER_INDEX in earlier for earlier in lines):
            go_on.touch()

    assert run((sys.executable, "-c", program), interval_sec=0.05, log=log) == 3
    assert len([line for line in lines if pip_progress.OTHER_INDEX in line]) == 2  # slow, once, and failed
    assert lines[-1].startswith("pip ended with exit code 3")
