"""pip with a line every quarter of a minute that says what it does: `python tasks/cli/pip_progress.py install ...`.

Used by the Makefile before anything is installed, so it imports only the standard library.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

INTERVAL_SEC = 15.0
MAX_CHARS = 70


def run(argv: Sequence[str], *, interval_sec: float = INTERVAL_SEC, log: Callable[[str], None] = print) -> int:
    """Run a program and return its exit code; log its newest line of output regularly. Its errors are not changed."""
    started, newest = time.monotonic(), "starting"
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, errors="replace") as process:

        def read() -> None:
            nonlocal newest
            for line in process.stdout or ():
                newest = line.strip() or newest

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while True:
            try:
                code = process.wait(interval_sec)
                reader.join()
                return code
            except subprocess.TimeoutExpired:
                minutes, seconds = divmod(round(time.monotonic() - started), 60)
                text = newest if len(newest) <= MAX_CHARS else f"{newest[: MAX_CHARS - 3]}..."
                log(f"[{minutes}:{seconds:02}] {text}")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(run((sys.executable, "-m", "pip", *sys.argv[1:], "--progress-bar", "off")))
