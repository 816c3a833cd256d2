"""Lines about a long installation, and its exit code."""

import sys
from pathlib import Path

from tasks.cli.pip_progress import run


def test_what_a_long_program_does_is_logged_and_its_exit_code_returned(tmp_path: Path) -> None:
    go_on, lines = tmp_path / "go on", list[str]()
    program = (
        "import pathlib, time; print('Collecting torch', flush=True)\n"
        f"while not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.01)\n"
        "raise SystemExit(3)"
    )

    def log(line: str) -> None:
        lines.append(line)
        if "Collecting torch" in line:
            go_on.touch()

    assert run((sys.executable, "-c", program), interval_sec=0.05, log=log) == 3
    assert lines[-1].startswith("[0:")
    assert lines[-1].endswith("] Collecting torch")
