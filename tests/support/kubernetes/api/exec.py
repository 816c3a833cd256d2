"""`kubectl exec`: the WebSocket protocol v5.channel.k8s.io, with faults.

Frames are binary; the first byte is the channel. As recorded: the server starts with an empty frame on channel 1; the
stream ends with a Status on channel 3 and Close 1000; failures of the infrastructure after the upgrade are a Status on
channel 3, too. There is no Status for a process that exits with unread input. containerd closes standard input as soon
as a process has closed its output; here nsenter holds both open, and the fault `stdin-cut` closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from typing import TYPE_CHECKING

from aiohttp import WSMsgType, web

from tests.support.kubernetes.api.answers import Json, internal_error
from tests.support.kubernetes.faults import ExecFault

if TYPE_CHECKING:
    from tests.support.kubernetes.node.kubelet import Kubelet

_STDIN, _STDOUT, _STDERR, _ERROR, _CLOSE = 0, 1, 2, 3, 255
_FRAME_BYTES = 32768
_DIAL_WAIT_SEC = 3.0  # the delay of a new exec on a lost node (recorded: 3.1 s)


def exit_status(code: int) -> Json:
    """Return the Status for an exit code."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: command terminated with exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


class Session:
    """One exec stream."""

    def __init__(self, request: web.Request, kubelet: Kubelet, pod: Json, fault: ExecFault | None) -> None:
        self._request, self._kubelet, self._pod = request, kubelet, pod
        self._argv = request.query.getall("command")
        self._stdin = request.query.get("stdin") == "true"
        self._fault = fault
        self._ws = web.WebSocketResponse(
            protocols=("v5.channel.k8s.io",), autoclose=False, compress=False, max_msg_size=0
        )
        self._left = fault.after_stdout_bytes if fault else None
        self._stdin_left = fault.after_stdin_bytes if fault else None
        self._sending = asyncio.Lock()
        self._over = asyncio.Event()
        self._how = ""
        self._is_unread = False

    async def run(self) -> web.WebSocketResponse:
        await self._ws.prepare(self._request)
        node = self._kubelet.node_of(self._pod)
        ends = self._kubelet.sessions.setdefault(node.name, set())
        ends.add(self._end)
        try:
            with contextlib.suppress(ConnectionError):
                await self._send(_STDOUT, b"")
                if node.exec_answer:
                    await self._send_dial_error(node.address, node.exec_answer)
                else:
                    await self._run_in_container()
        finally:
            ends.discard(self._end)
        if self._how:
            await self._strike(self._how)
        return self._ws

    def _end(self, how: str) -> None:
        """End this stream in the way `how`; also called by faults."""
        self._how = self._how or how
        self._over.set()

    async def _send(self, channel: int, data: bytes) -> None:
        async with self._sending:
            await self._ws.send_bytes(bytes([channel]) + data)

    async def _finish(self, status: Json) -> None:
        await self._send(_ERROR, json.dumps(status, separators=(",", ":")).encode())
        await self._ws.close(code=1000)

    async def _send_dial_error(self, address: str, reason: str) -> None:
        if reason == "silence":
            await self._over.wait()
            return
        if reason == "no route to host":
            await asyncio.sleep(_DIAL_WAIT_SEC)
        url = f"https://{address}:10250/exec"
        message = f'error sending request: Post "{url}": dial tcp {address}:10250: connect: {reason}'
        await self._finish(internal_error(message))

    async def _run_in_container(self) -> None:
        container = self._kubelet.container(self._pod)
        if container is None:
            name = self._pod["spec"]["containers"][0]["name"]
            message = f'unable to upgrade connection: container not found ("{name}")'
            await self._finish(internal_error(message))
            return
        process = await container.execute(self._argv, stdin=self._stdin)
        assert process.stdout is not None
        assert process.stderr is not None
        pumps = self._pump(process.stdout, _STDOUT), self._pump(process.stderr, _STDERR)
        listening = asyncio.create_task(self._listen(process))
        done = asyncio.ensure_future(asyncio.gather(process.wait(), *pumps))
        over = asyncio.create_task(self._over.wait())
        try:
            if self._fault and self._left == 0:
                self._end(self._fault.how)
            await asyncio.wait([done, over, listening], return_when=asyncio.FIRST_COMPLETED)
            if listening.done() and not over.done() and not done.done():
                return  # the client has gone; the process continues and its output is discarded
            if not self._how:
                await done
                code = process.returncode or 0
                if self._is_unread:
                    await self._over.wait()  # containerd holds input that the process left unread
                elif self._fault and self._fault.how != "stdin-cut":
                    self._end(self._fault.how)
                else:
                    await self._finish(exit_status(code if code >= 0 else 128 - code))
        finally:
            over.cancel()
            listening.cancel()  # pings are no longer answered
            _keep_draining(done, process)

    async def _pump(self, stream: asyncio.StreamReader, channel: int) -> None:
        while data := await stream.read(_FRAME_BYTES):
            if self._how or self._ws.closed:
                continue  # discard the output, so that the process does not block or die
            if channel == _STDOUT and self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
            with contextlib.suppress(ConnectionError):
                await self._send(channel, data)
            if self._left == 0 and self._fault:
                self._end(self._fault.how)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Receive the client's frames until it disconnects."""
        async for message in self._ws:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == _CLOSE and process.stdin is not None:
                process.stdin.close()
            elif channel == _STDIN and process.stdin is not None:
                await self._feed(process, data)
        if process.stdin is not None:
            process.stdin.close()

    async def _feed(self, process: asyncio.subprocess.Process, data: bytes) -> None:
        assert process.stdin is not None
        if self._stdin_left is not None:
            data = data[: self._stdin_left]
            self._stdin_left -= len(data)
        if process.stdin.is_closing():
            # The rest after a cut is ignored; input for an exited process stays unread.
            self._is_unread |= process.returncode is not None and self._stdin_left is None
        else:
            try:
                process.stdin.write(data)
                await process.stdin.drain()
            except ConnectionError:
                self._is_unread = True
        if self._stdin_left == 0:
            self._strike_stdin(process)

    def _strike_stdin(self, process: asyncio.subprocess.Process) -> None:
        assert self._fault is not None
        if self._fault.how == "stdin-cut":
            if process.stdin is not None:
                process.stdin.close()
        else:
            self._end(self._fault.how)

    async def _strike(self, how: str) -> None:
        """End the stream in the fault's way."""
        transport = self._request.transport
        with contextlib.suppress(ConnectionError):
            if how == "close-1000-without-status":
                await self._ws.close(code=1000)
            elif how == "internal-error":
                await self._finish(internal_error("error dialing backend: EOF"))
            elif how == "only-success-no-close":
                await self._send(_ERROR, json.dumps(exit_status(0)).encode())
                await self._wait_for_client_exit()
            elif how == "freeze":
                await self._wait_for_client_exit()
            elif transport is not None:
                if (raw := transport.get_extra_info("socket")) is not None:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                transport.abort()

    async def _wait_for_client_exit(self) -> None:
        """Send nothing until the client has disconnected."""
        while (transport := self._request.transport) is not None and not transport.is_closing():
            await asyncio.sleep(0.05)


_left_running: set[asyncio.Future[object]] = set()


def _keep_draining(done: asyncio.Future[object], process: asyncio.subprocess.Process) -> None:
    """Keep draining the output of a process whose client has gone."""
    if process.stdin is not None:
        process.stdin.close()
    if not done.done():
        _left_running.add(done)
        done.add_done_callback(_left_running.discard)
