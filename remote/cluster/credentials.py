"""A limit for the programs that a kubeconfig names for its credentials: the kubernetes client waits for them for ever.

What it has started itself is ended with it. It shares our terminal, on which it may ask for a password, so it has no
process group of its own that could be ended whole: Linux lists its children. Not covered: other systems, and a child
whose parent has ended before, as that of a service.
"""

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from remote.hosts.host import CommandTimedOut, TooMuchOutput
from remote.hosts.process import BoundedOutput, ProcessLimits, pump

LIMIT_SEC = 120.0  # as long as kubectl has for all it does; somebody may have to log in meanwhile
_LEAVE_SEC = 2.0


class _LimitedExecProvider(subprocess.Popen[str]):
    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002
        """As Popen's, and raises OSError for a program that is not done after LIMIT_SEC, or prints without end."""
        program = f"the kubeconfig's credential program {self.args[0] if isinstance(self.args, list) else self.args!s}"
        limits, out, err = (
            ProcessLimits(program, timeout or LIMIT_SEC, None),
            BoundedOutput(program),
            BoundedOutput(program),
        )
        try:
            heard = cast("subprocess.Popen[bytes]", self)
            pump(heard, (input or "").encode(), {heard.stdout: out.take, heard.stderr: err.take}, limits)
            self.wait(limits.left_sec())
        except (CommandTimedOut, subprocess.TimeoutExpired):
            self._end()
            raise TimeoutError(
                f"{program} was not done after {limits.timeout_sec:g} s and was ended; run it by hand to see what it "
                "waits for"
            ) from None
        except TooMuchOutput as error:
            self._end()
            raise OSError(str(error)) from None
        return out.content.decode(errors="replace"), err.content.decode(errors="replace")

    def _end(self) -> None:
        below = _below(self.pid)
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(_LEAVE_SEC)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: do not wait for it
            self.wait(_LEAVE_SEC)
        for handle in below:
            with contextlib.suppress(OSError):  # ended, or another user's, as behind sudo
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        for stream in (self.stdout, self.stderr):  # not read to their end: somebody may hold them open still
            if stream is not None:
                stream.close()


def _below(number: int) -> list[int]:
    """Handles of the processes that this one has started, and of theirs; none where the kernel does not list them.

    A handle stays its process's own, also when another one gets its number.
    """
    handles, todo = list[int](), [number]
    while todo:
        one = todo.pop()
        with contextlib.suppress(OSError):  # ended meanwhile
            if one != number:
                handles.append(os.pidfd_open(one))
            for listed in Path(f"/proc/{one}/task").glob("*/children"):
                todo += map(int, listed.read_text().split())
    return handles


def limit_programs(*modules: ModuleType) -> None:
    """From now on the client's `modules` give each program LIMIT_SEC, also when they renew a token later."""
    for module in modules:
        vars(module)["subprocess"] = SimpleNamespace(Popen=_LimitedExecProvider, PIPE=subprocess.PIPE)
