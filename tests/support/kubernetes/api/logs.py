"""`kubectl logs`: a container's output so far, or until it ends."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from aiohttp import web

from tests.support.kubernetes.api.answers import Json, bad_request

if TYPE_CHECKING:
    from tests.support.kubernetes.node.container import Container, Log
    from tests.support.kubernetes.node.kubelet import Kubelet

_WHY = {
    "ErrImagePull": "trying and failing to pull image",
    "ImagePullBackOff": "trying and failing to pull image",
    "ContainerCreating": "ContainerCreating",
    "PodInitializing": "PodInitializing",
}


def _log_of(container: Container, pod: Json, *, previous: bool) -> Log:
    name = pod["metadata"]["name"]
    if previous:
        raise bad_request(f'previous terminated container "{container.name}" in pod "{name}" not found')
    waiting = container.state.get("waiting")
    if waiting:
        reason = _WHY.get(waiting["reason"], waiting["reason"])
        raise bad_request(f'container "{container.name}" in pod "{name}" is waiting to start: {reason}')
    return container.log


async def serve_log(request: web.Request, kubelet: Kubelet, pod: Json, name: str) -> web.StreamResponse:
    """Answer GET .../log. A followed log ends like a complete one, whatever the cause."""
    worker = kubelet.workers.get(pod["metadata"]["uid"])
    if worker is None:
        return web.Response(status=204)  # not scheduled: empty, and no error
    query = request.query
    log = _log_of(worker.containers[name], pod, previous=query.get("previous") == "true")
    start = 0
    if "tailLines" in query:
        start = max(0, len(log.lines) - int(query["tailLines"]))
    if query.get("follow") != "true":
        return web.Response(body=b"".join(line for _, line in log.lines[start:]), content_type="text/plain")
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    cut = asyncio.Event()
    ends = kubelet.sessions.setdefault(worker.node.name, set())

    def end(_: str) -> None:
        cut.set()

    async def send() -> None:
        async for line in log.follow(start):
            await response.write(line[1])

    ends.add(end)
    tasks = [asyncio.create_task(send()), asyncio.create_task(cut.wait()), asyncio.create_task(_until_gone(request))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ends.discard(end)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await tasks[0]
    return response


async def _until_gone(request: web.Request) -> None:
    while request.transport is not None and not request.transport.is_closing():
        await asyncio.sleep(0.2)
