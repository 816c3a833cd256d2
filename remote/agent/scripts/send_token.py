"""Program that copies standard input to the named pipe at PATH, once the job has created it: `python -c THIS PATH`."""

import os
import sys
import time
from pathlib import Path

PIPE_TIMEOUT_SEC = 60.0


def main() -> None:
    path, content, until = Path(sys.argv[1]), sys.stdin.buffer.read(), time.monotonic() + PIPE_TIMEOUT_SEC
    while not path.exists():
        if path.with_name("outcome.json").exists():
            return  # the job has ended, and says why
        if time.monotonic() > until:
            sys.exit(f"{path}: the job has not created the pipe for its token")
        time.sleep(0.05)
    if not path.is_fifo():
        sys.exit(f"{path}: not a named pipe")
    handle = os.open(path, os.O_WRONLY)
    os.write(handle, content)
    os.close(handle)


if __name__ == "__main__":
    main()
