"""`kubectl logs`: a container's output so far, or until it ends."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from aiohttp import web

from tests.support.kubernetes.api.answers import Json

if TYPE_CHECKING:
    from tests.support.kubernetes.node.kubelet import Kubelet

_POLL_SEC = 0.1


async def serve_log(request: web.Request, kubelet: Kubelet, pod: Json) -> web.StreamResponse:
    """Answer GET .../log. A followed log ends like a complete one, whatever the cause."""
    query, name = request.query, request.query["container"]
    container = kubelet.workers[pod["metadata"]["uid"]].containers[name]
    sent = max(0, len(container.log) - int(query["tailLines"])) if "tailLines" in query else 0
    if query.get("follow") != "true":
        return web.Response(body=b"".join(container.log[sent:]), content_type="text/plain")
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        while request.transport is not None and not request.transport.is_closing():
            has_ended = container.exit_code is not None
            for line in container.log[sent:]:
                await response.write(line)
                sent += 1
            if has_ended:
                break
            await asyncio.sleep(_POLL_SEC)
    return response
