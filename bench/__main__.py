"""`python -m bench COMMAND`; see `bench.commands.cli`."""

import contextlib
import os
import sys

from bench.commands.cli import main

code = main()
if "torch" in sys.modules:
    # The result is on the disk. Taking torch's threads, or a half-finished import of it, apart again is the one thing
    # that could still crash or hang a finished trial.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a reader that has gone changes nothing about how the trial ended
            stream.flush()
    os._exit(code)
sys.exit(code)
