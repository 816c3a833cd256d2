"""`python -m bench COMMAND`; see `bench.commands.cli`."""

import contextlib
import faulthandler
import io
import os
import signal
import sys

from bench.commands.cli import main
from bench.records.status import ExitCode

os.environ.update(PYTHONUTF8="1", PYTHONIOENCODING="utf-8")  # for child processes
for standard in (sys.stdin, sys.stdout, sys.stderr):
    if isinstance(standard, io.TextIOWrapper) and standard.encoding != "utf-8":
        standard.reconfigure(encoding="utf-8", errors=standard.errors)
faulthandler.register(signal.SIGUSR1, file=2)  # `kill -USR1 PID` writes every thread's stack into the log
code = main()
if "torch" in sys.modules:
    # The result is on the disk. Shutting down torch's threads, or a half-finished import of torch, could still crash or
    # hang a finished trial.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a closed pipe does not change the exit code
            stream.flush()
    os._exit(code)
try:
    sys.stdout.flush()
except BrokenPipeError:
    os._exit(ExitCode.BROKEN_PIPE)
sys.exit(code)
