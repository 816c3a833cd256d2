"""A program on a pseudo-terminal: its screen is read with a deadline."""

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

TIMEOUT_SEC = 120.0


class PseudoTerminal:
    """Process whose standard streams are a pseudo-terminal; `start` receives the streams and starts it."""

    def __init__(self, start: Callable[..., "subprocess.Popen[Any]"]) -> None:
        self._screen, side = pty.openpty()
        self.output = ""
        try:
            self._process = start(stdin=side, stdout=side, stderr=side)
        finally:
            os.close(side)

    def wait_for(self, *texts: str) -> None:
        """Read until one of these texts is shown."""
        deadline = time.monotonic() + TIMEOUT_SEC
        while not any(text in self.output for text in texts):
            assert self._read(), f"ended before {texts}:\n{self.output}"
            assert time.monotonic() < deadline, f"waited for {texts}; shown so far:\n{self.output}"

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def wait(self) -> int:
        """Read until the end; return the exit code."""
        deadline = time.monotonic() + TIMEOUT_SEC
        while self._process.poll() is None or select.select([self._screen], [], [], 0)[0]:
            if not self._read():
                break
            assert time.monotonic() < deadline, f"does not end:\n{self.output}"
        return self._process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self) -> bool:
        """Read for up to a tenth of a second; False once the other side is closed."""
        if select.select([self._screen], [], [], 0.1)[0]:
            try:
                self.output += os.read(self._screen, 65536).decode(errors="replace")
            except OSError:
                return False
        return True

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._screen)
