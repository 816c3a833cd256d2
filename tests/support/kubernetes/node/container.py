"""One container's process: its start in a sandbox, its log, its exit."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.store.store import now

_SANDBOX = Path(__file__).with_name("sandbox.py")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def termination_log(root: str | Path) -> Path:
    """Return the file that a container with this file tree sees as /dev/termination-log."""
    return Path(f"{root}-message")


@dataclass(kw_only=True)
class Container:
    """A pod's container, which runs once. `state` has the API's form."""

    spec: Json
    environment: dict[str, str] = field(default_factory=dict)
    log: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    state: Json = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    ready: bool = False
    pid: int | None = None
    uid: int = 0
    gid: int = 0
    kill_reason: str = ""  # the reason to report after its death, such as OOMKilled
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    async def start(self, sandbox: Json) -> None:
        """Start PID 1."""
        self.environment = sandbox["environment"]
        self.uid, self.gid = sandbox["uid"], sandbox["gid"]
        read, write = os.pipe()
        try:
            shim = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(_SANDBOX),
                str(write),
                stdin=asyncio.subprocess.PIPE,
                stdout=self.log,
                stderr=self.log,
                pass_fds=(write,),
                start_new_session=True,
            )
        finally:
            os.close(write)
        assert shim.stdin is not None
        shim.stdin.write(json.dumps(sandbox).encode())
        shim.stdin.close()
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb")
        )
        self.pid = int(await reader.readline())
        started = now()
        self.state = {"running": {"startedAt": started}}
        self.tasks = [asyncio.create_task(self._wait_for_end(shim, reader, started, sandbox["root"]))]

    async def _wait_for_end(
        self, shim: asyncio.subprocess.Process, reader: asyncio.StreamReader, started: str, root: str
    ) -> None:
        code = int(await reader.readline() or 137)
        await shim.wait()
        self.pid, self.ready = None, False
        reason = self.kill_reason or ("Completed" if code == 0 else "Error")
        ended: Json = {"startedAt": started, "finishedAt": now(), "exitCode": code, "reason": reason}
        if message := termination_log(root).read_text(errors="replace"):
            ended["message"] = message
        self.state = {"terminated": ended}
        await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)
        self.ended.set()

    def signal(self, number: int) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    async def execute(self, argv: list[str], *, stdin: bool) -> asyncio.subprocess.Process:
        """Start `argv` in the container as its user. The process dies with PID 1, but not with the exec stream."""
        enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-p", "-r", "-w", f"-S{self.uid}", f"-G{self.gid}"]
        return await asyncio.create_subprocess_exec(
            *enter,
            "--",
            *argv,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
            start_new_session=True,
        )
