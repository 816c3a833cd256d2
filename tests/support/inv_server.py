"""`inv` in a forked child of a process that has its libraries already: half a second of imports less for each call.

    with InvServer(folder) as server:
        server.inv("status", cwd=project, env={...})        # CompletedProcess, as from subprocess.run

What is typed is a process of its own, with its own environment, folder and exit code; the project's own modules are
imported anew by each, from the folder in which it is typed. What this does not cover: the start of the interpreter,
and a terminal. Tests of these, and of an `inv` that is killed, start the real program.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

START_SEC = 120.0
LIBRARIES = ("invoke.main", "pydantic", "yaml", "rich.live", "jinja2", "kubernetes.client", "fabric", "docker")


class InvServer:
    """`start` starts a command line and returns its Popen, here or on another machine. `folder` holds the socket."""

    def __init__(self, folder: Path, start: Callable[..., subprocess.Popen[Any]] = subprocess.Popen) -> None:
        self._path, self._start = folder / "inv.socket", start

    def __enter__(self) -> InvServer:
        argv = (sys.executable, "-m", "tests.support.inv_server", str(self._path))
        self._process = self._start(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE)
        deadline = time.monotonic() + START_SEC
        while not self._path.exists():
            assert self._process.poll() is None, "the server of `inv` did not start"
            assert time.monotonic() < deadline, f"the server of `inv` is not there after {START_SEC:.0f} s"
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def inv(
        self, *words: str, cwd: Path, env: Mapping[str, str], stdin: str = "", timeout_sec: float
    ) -> subprocess.CompletedProcess[str]:
        """Type `inv` with these words in `cwd` and wait for its end. Raises TimeoutExpired, having killed it."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(stdin.encode())
            files[0].seek(0)
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(str(self._path))
            request = json.dumps({"words": words, "cwd": str(cwd), "env": dict(env)}).encode()
            socket.send_fds(connection, [len(request).to_bytes(4, "big")], [file.fileno() for file in files])
            connection.sendall(request)
            connection.settimeout(timeout_sec)
            try:
                code = int(connection.makefile().readline())
            except TimeoutError:  # the server kills what it runs once nobody listens
                raise subprocess.TimeoutExpired(["inv", *words], timeout_sec) from None
            out, err = ((file.seek(0), file.read().decode(errors="replace"))[1] for file in files[1:])
        return subprocess.CompletedProcess(["inv", *words], code, out, err)


def serve(path: str) -> None:
    """Until standard input ends, which it does with the process that started this one."""
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who answer
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen()
    os.rename(f"{path}.new", path)
    while 0 not in select.select([listener, 0], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _answer(connection)
            return
        connection.close()


def _answer(connection: socket.socket) -> None:
    """Run one request in a child, and tell its exit code. Kills it when the one who asked is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, handles, _, _ = socket.recv_fds(connection, 4, 3)
    request = json.loads(connection.makefile("rb").read(int.from_bytes(size, "big")))
    child = os.fork()
    if child == 0:
        connection.close()
        _inv(request["words"], request["cwd"], request["env"], handles)
        return
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(f"{code}\n".encode())


def _inv(words: Sequence[str], cwd: str, environment: Mapping[str, str], handles: Sequence[int]) -> None:
    """What `inv` does."""
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0], sys.argv = cwd, ["inv", *words]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    # Read once, at the import.
    sys.modules["kubernetes.config.kube_config"].KUBE_CONFIG_DEFAULT_LOCATION = environment.get(
        "KUBECONFIG", "~/.kube/config"
    )
    sys.exit(importlib.import_module("tasks.cli.program").main(sys.argv))


if __name__ == "__main__":
    serve(sys.argv[1])
