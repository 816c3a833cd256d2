"""Timeout for a kubeconfig's credential programs: the kubernetes client would wait for them indefinitely.

The program's descendants are killed with it. It shares our terminal, where it may prompt for a password, so it has no
process group of its own; Linux lists its children instead. Not covered: other systems, and orphans of the program.
"""

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from remote.hosts.base import CommandTimedOut, TooMuchOutput
from remote.hosts.process import BoundedOutput, ProcessLimits, pump

CREDENTIAL_TIMEOUT_SEC = 120.0  # kubectl's own timeout here; the operator may have to log in meanwhile
_TERMINATE_SEC = 2.0


class _LimitedCredentialProgram(subprocess.Popen[str]):
    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002
        """Like `Popen.communicate`. Raises OSError if the program times out or prints too much."""
        program = f"the kubeconfig's credential program {self.args[0] if isinstance(self.args, list) else self.args!s}"
        limits, out, err = (
            ProcessLimits(program, timeout or CREDENTIAL_TIMEOUT_SEC, None),
            BoundedOutput(program),
            BoundedOutput(program),
        )
        try:
            process = cast("subprocess.Popen[bytes]", self)
            pump(process, (input or "").encode(), {process.stdout: out.append, process.stderr: err.append}, limits)
            self.wait(limits.remaining_sec())
        except (CommandTimedOut, subprocess.TimeoutExpired) as error:
            self._kill_tree()
            raise TimeoutError(
                f"{program} timed out after {limits.timeout_sec:g} s; run it by hand to see what it waits for"
            ) from error
        except TooMuchOutput as error:
            self._kill_tree()
            raise OSError(str(error)) from error
        return out.content.decode(errors="replace"), err.content.decode(errors="replace")

    def _kill_tree(self) -> None:
        descendants = _open_descendants(self.pid)
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(_TERMINATE_SEC)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel
            self.wait(_TERMINATE_SEC)
        for handle in descendants:
            with contextlib.suppress(OSError):  # ended, or another user's because of sudo
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        for stream in (self.stdout, self.stderr):  # not read to the end: a descendant may hold them open
            if stream is not None:
                stream.close()


def _open_descendants(root: int) -> list[int]:
    """Open a pidfd of every descendant; none if the kernel does not list them. A pidfd survives reuse of the pid."""
    handles, todo = list[int](), [root]
    while todo:
        pid = todo.pop()
        with contextlib.suppress(OSError):  # ended meanwhile
            if pid != root:
                handles.append(os.pidfd_open(pid))
            for listed in Path(f"/proc/{pid}/task").glob("*/children"):
                todo += map(int, listed.read_text().split())
    return handles


def limit_credential_programs(*modules: ModuleType) -> None:
    """Make the client's `modules` limit each credential program, also when they renew a token later."""
    for module in modules:
        vars(module)["subprocess"] = SimpleNamespace(Popen=_LimitedCredentialProgram, PIPE=subprocess.PIPE)
