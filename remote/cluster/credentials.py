"""A limit for the programs that a kubeconfig names for its credentials: the kubernetes client waits for them for ever.

Not covered: what such a program has started itself is not ended with it. It shares our terminal, on which it may ask
for a password, so it has no process group of its own that could be ended whole.
"""

import contextlib
import subprocess
from types import ModuleType, SimpleNamespace
from typing import Any

LIMIT_SEC = 120.0  # as long as kubectl has for all it does; somebody may have to log in meanwhile
_LEAVE_SEC = 2.0


class _Limited(subprocess.Popen[str]):
    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002
        """As Popen's, and raises TimeoutError for a program that is not done after LIMIT_SEC."""
        try:
            return super().communicate(input, LIMIT_SEC if timeout is None else timeout)
        except subprocess.TimeoutExpired as expired:
            self._end()
            program = self.args[0] if isinstance(self.args, list) else self.args
            raise TimeoutError(
                f"the kubeconfig's credential program {program!s} was not done after {expired.timeout:g} s and was "
                "ended; run it by hand to see what it waits for"
            ) from None

    def _end(self) -> None:
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(_LEAVE_SEC)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: do not wait for it
            self.wait(_LEAVE_SEC)
        for stream in (self.stdout, self.stderr):  # not read to their end: a child of the program may hold them open
            if stream is not None:
                stream.close()


def limit_programs(*modules: ModuleType) -> None:
    """From now on the client's `modules` give each program LIMIT_SEC, also when they renew a token later."""
    for module in modules:
        vars(module)["subprocess"] = SimpleNamespace(Popen=_Limited, PIPE=subprocess.PIPE)
