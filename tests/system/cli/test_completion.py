"""Tests of the completion in real shells, typed at a terminal."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.paths import ROOT

RUN = "20261126-020000-quick"
SHELLS = {"bash": ("bash", "--norc", "-i"), "zsh": ("zsh", "-f", "-i")}
TYPED = {
    "inv data.c": "inv data.check ",
    "inv report --run 2026": f"inv report --run {RUN} ",
    "inv report --run=2026": f"inv report --run={RUN} ",
    "inv bench --only packed,basel": "inv bench --only packed,baseline",
    "inv build --tmpdir /et": "inv build --tmpdir /etc/",
    "inv build --tmpdir=/et": "inv build --tmpdir=/etc/",
}
DEADLINE_SEC = 60.0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "run.json").touch()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "INVOKE_RESULTS_FOLDER": str(tmp_path), "TERM": "dumb", "PS1": "", "HOME": "/"}


def need(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


class Shell:
    """A shell at a terminal, with the screen's text so far."""

    def __init__(self, argv: tuple[str, ...], environment: dict[str, str]) -> None:
        self.screen = ""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execvpe(argv[0], argv, environment)  # noqa: S606 - the shell is the program

    def type(self, text: str, expected: str) -> None:
        """Type a text and wait until the screen shows another. Raises AssertionError after a deadline."""
        start, deadline = len(self.screen), time.monotonic() + DEADLINE_SEC
        os.write(self.terminal, text.encode())
        while expected not in self.screen[start:]:
            assert time.monotonic() < deadline, self.screen[start:]
            if select.select([self.terminal], [], [], 1.0)[0]:
                self.screen += os.read(self.terminal, 65536).decode(errors="replace")

    def close(self) -> None:
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


@pytest.mark.parametrize("name", SHELLS)
def test_words_are_completed_at_the_terminal(name: str, environment: dict[str, str]) -> None:
    need(name)
    shell = Shell(SHELLS[name], environment)
    try:
        shell.type(f"source <(inv --print-completion-script {name}); echo rea''dy\n", "ready")
        for typed, completed in TYPED.items():
            shell.type("\x15" + typed + "\t", completed[len(typed) :].strip())
    finally:
        shell.close()


def test_fish_completes_words(environment: dict[str, str]) -> None:
    need("fish")
    lines = "; ".join(f'complete -C "{typed}"' for typed in TYPED)
    script = f"inv --print-completion-script fish | source; {lines}"
    environment |= {"HOME": environment["INVOKE_RESULTS_FOLDER"]}
    done = subprocess.run(("fish", "-c", script), cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    completions = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert completions == [completed.strip().split(" ")[-1] for completed in TYPED.values()]
