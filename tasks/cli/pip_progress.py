"""pip with lines that say what it does, of how many packages and bytes: `python tasks/cli/pip_progress.py install ...`.

Used by the Makefile before anything is installed, so it imports only the standard library. Sizes are those that pip
prints; those of files that it takes from a folder are read.
"""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

INTERVAL_SEC = 15.0
SLOW_SEC = 60.0
MAX_CHARS = 50
OTHER_INDEX = (
    "another index: `make install PIP_ARGS='--index-url https://HOST/simple --timeout 60'`; what was downloaded is kept"
)
_FILE = re.compile(r"\s*(?:Downloading|Using cached) (\S+)(?<!\.metadata) \(([\d.]+) ([kMG]?)B\)")
_LOCAL_FILE = re.compile(r"Processing (\S+\.whl)")
_INSTALLING = "Installing collected packages: "
_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}


class Progress:
    """State of an installation, from pip's output: packages and bytes so far, and the newest step."""

    def __init__(self) -> None:
        self.packages, self.bytes = 0, 0.0
        self.newest, self.newest_at = "starting", time.monotonic()
        self.is_writing = False

    def read_line(self, line: str) -> None:
        """Take one line of pip's output into account."""
        if self.is_writing or not line.strip():
            return
        self.newest, self.newest_at = line.strip(), time.monotonic()
        if match := _FILE.match(line):
            self.packages, self.bytes = self.packages + 1, self.bytes + float(match[2]) * _UNITS[match[3]]
        elif match := _LOCAL_FILE.match(line):
            path = Path(match[1])
            self.packages, self.bytes = self.packages + 1, self.bytes + (path.stat().st_size if path.exists() else 0)
        elif line.startswith(_INSTALLING):
            self.is_writing, self.newest = True, f"writing {line.count(',') + 1} packages to the disk"

    @property
    def amount(self) -> str:
        return f"{self.packages} packages, {self.bytes / 1e6:.0f} MB"

    @property
    def text(self) -> str:
        newest = self.newest if len(self.newest) <= MAX_CHARS else f"{self.newest[: MAX_CHARS - 3]}..."
        return f"{self.amount}: {newest}" if self.packages else newest

    @property
    def is_slow(self) -> bool:
        return not self.is_writing and time.monotonic() - self.newest_at >= SLOW_SEC


def run(argv: Sequence[str], *, interval_sec: float = INTERVAL_SEC, log: Callable[[str], None] = print) -> int:
    """Run pip and return its exit code; log its progress regularly, and the total. Its errors are not changed."""
    started, progress, is_hinted = time.monotonic(), Progress(), False

    def log_line(text: str) -> None:
        minutes, seconds = divmod(round(time.monotonic() - started), 60)
        log(f"[{minutes}:{seconds:02}] {text}")

    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, errors="replace") as process:

        def read() -> None:
            for line in process.stdout or ():
                progress.read_line(line)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while True:
            try:
                code = process.wait(interval_sec)
                reader.join()
            except subprocess.TimeoutExpired:
                log_line(progress.text)
                if progress.is_slow and not is_hinted:
                    is_hinted = True
                    log_line(f"the index is slow; pip goes on; {OTHER_INDEX}")
                continue
            log_line(f"installed {progress.amount}" if code == 0 else f"pip ended with exit code {code}; {OTHER_INDEX}")
            return code


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(run((sys.executable, "-m", "pip", *sys.argv[1:], "--progress-bar", "off")))
