"""Handlers of the API's verbs: get, list, watch, create, update, patch, delete; logs of pods and exec."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.support.kubernetes.api.answers import SUCCESS, Json, Refusal, bad_request
from tests.support.kubernetes.api.exec import Session
from tests.support.kubernetes.api.selectors import object_filter
from tests.support.kubernetes.api.write import Writer
from tests.support.kubernetes.store.resources import Resource, Target
from tests.support.kubernetes.store.store import Store, now

if TYPE_CHECKING:
    from tests.support.kubernetes.faults import Faults
    from tests.support.kubernetes.node.kubelet import Kubelet

_WATCH_POLL_SEC = 1.0
_LOG_POLL_SEC = 0.1
_FOREGROUND = "foregroundDeletion"


class Api:
    """Handler of authorized requests."""

    def __init__(self, store: Store, kubelet: Kubelet, faults: Faults) -> None:
        self.store, self.kubelet, self.faults = store, kubelet, faults
        self.writer = Writer(store)

    async def handle(self, request: web.Request, at: Target, body: Any) -> web.StreamResponse:
        if at.subresource in ("exec", "log"):
            return await (self._exec(request, at) if at.subresource == "exec" else self._log(request, at))
        if request.method == "GET":
            return await self._read(request, at)
        if request.method == "DELETE":
            return self._delete(at, body if isinstance(body, dict) else {})
        written = self.writer.write(request.method, at, body, dict(request.query), request.content_type)
        return web.json_response(self._typed(at.resource, written), status=201 if request.method == "POST" else 200)

    # Reading

    async def _read(self, request: web.Request, at: Target) -> web.StreamResponse:
        key = at.resource.key
        if at.name:
            stored = self.store.get(key, at.namespace, at.name)
            return web.json_response(self._typed(at.resource, stored))
        holds = object_filter(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
        if request.query.get("watch") in ("true", "1"):
            return await self._watch(request, at, holds)
        return web.json_response(
            {
                "kind": f"{at.resource.kind}List",
                "apiVersion": at.resource.api_version,
                "metadata": {"resourceVersion": str(self.store.version)},
                "items": [
                    {k: v for k, v in obj.items() if k not in ("kind", "apiVersion")}
                    for obj in self.store.list(key, at.namespace)
                    if holds(obj)
                ],
            }
        )

    @staticmethod
    def _typed(resource: Resource, obj: Json) -> Json:
        return {"kind": resource.kind, "apiVersion": resource.api_version, **obj}

    async def _watch(self, request: web.Request, at: Target, holds: Any) -> web.StreamResponse:
        since, seen, woken = int(request.query["resourceVersion"]), 0, asyncio.Event()
        deadline = time.monotonic() + float(request.query.get("timeoutSeconds") or 1800)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        stop_listening = self.store.listen(lambda _: woken.set())
        try:
            while time.monotonic() < deadline and request.transport is not None:
                woken.clear()
                for change in self.store.history[seen:]:
                    seen += 1
                    is_inside = not at.namespace or change.new["metadata"].get("namespace") == at.namespace
                    if change.version > since and change.key == at.resource.key and is_inside and holds(change.new):
                        await self.faults.responsive.wait()
                        kind = "DELETED" if change.is_deletion else "MODIFIED"
                        event = {"type": kind, "object": self._typed(at.resource, change.new)}
                        await response.write(json.dumps(event).encode() + b"\n")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), _WATCH_POLL_SEC)
        except ConnectionError:
            return response  # the watcher has gone
        finally:
            stop_listening()
        return response

    # Deleting

    def _delete(self, at: Target, options: Json) -> web.StreamResponse:
        gone = self.delete(at.resource.key, at.namespace, at.name, options)
        about = {"name": at.name, "group": at.resource.group, "kind": at.resource.plural}
        return web.json_response({**SUCCESS, "details": {**about, "uid": gone["metadata"]["uid"]}})

    def delete(self, key: str, namespace: str, name: str, options: Json) -> Json:
        """Delete an object and its dependents; pods with their grace period.

        An object with finalizers is marked and stays until they are gone (`finalize`); one that is deleted in the
        foreground has such a finalizer until its dependents are gone.
        """
        obj = self.store.get(key, namespace, name)
        if key == "pods":
            return self._delete_pod(obj, options)
        finalizers = list(obj["metadata"].get("finalizers") or ())
        if options.get("propagationPolicy") == "Foreground" and any(self._owned(obj)):
            finalizers.append(_FOREGROUND)
        if finalizers:

            def mark(changed: Json) -> None:
                changed["metadata"].setdefault("deletionTimestamp", now())
                changed["metadata"]["finalizers"] = sorted(set(finalizers))

            gone = self.store.edit(key, namespace, name, mark) or obj
        else:
            gone = self.store.remove(key, namespace, name)
        if _FOREGROUND in finalizers or not finalizers:
            self._delete_owned(gone)
        return gone

    def finalize(self) -> None:
        """Remove the marked objects whose finalizers are gone."""
        for key in list(self.store.keys()):
            for obj in self.store.list(key):
                metadata = obj["metadata"]
                if not metadata.get("deletionTimestamp") or metadata.get("deletionGracePeriodSeconds"):
                    continue  # a pod in its time of grace is the kubelet's
                finalizers = set(metadata.get("finalizers") or ())
                if not finalizers or (finalizers == {_FOREGROUND} and not any(self._owned(obj))):
                    with contextlib.suppress(Refusal):
                        self._delete_owned(self.store.remove(key, metadata.get("namespace", ""), metadata["name"]))

    def _owned(self, owner: Json) -> Iterator[tuple[str, Json]]:
        uid, namespace = owner["metadata"]["uid"], owner["metadata"].get("namespace", "")
        for key in list(self.store.keys()):
            for obj in self.store.list(key, namespace):
                if any(ref["uid"] == uid for ref in obj["metadata"].get("ownerReferences", [])):
                    yield key, obj

    def _delete_owned(self, owner: Json) -> None:
        for key, obj in list(self._owned(owner)):
            with contextlib.suppress(Refusal):  # gone meanwhile
                self.delete(key, owner["metadata"].get("namespace", ""), obj["metadata"]["name"], {})

    def _delete_pod(self, pod: Json, options: Json) -> Json:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        grace = options.get("gracePeriodSeconds")
        if grace is None:
            grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
        bound = pod["spec"].get("nodeName") and pod["metadata"]["uid"] in self.kubelet.workers
        if not bound:
            grace = 0
        if grace == 0 and not pod["metadata"].get("finalizers"):
            return self.store.remove("pods", namespace, name)
        known = pod["metadata"].get("deletionGracePeriodSeconds")
        if known is not None and known <= grace:
            return pod

        def mark(changed: Json) -> None:
            until = datetime.now(UTC) + timedelta(seconds=grace)
            changed["metadata"] |= {
                "deletionTimestamp": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "deletionGracePeriodSeconds": grace,
            }

        return self.store.edit("pods", namespace, name, mark) or pod

    async def _exec(self, request: web.Request, at: Target) -> web.StreamResponse:
        pod = self.store.get("pods", at.namespace, at.name)
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            raise bad_request(
                f"cannot exec into a container in a completed pod; current phase is {pod['status']['phase']}"
            )
        fault = self.faults.of_exec(at.name)
        return await Session(request, self.kubelet, pod, fault).run()

    async def _log(self, request: web.Request, at: Target) -> web.StreamResponse:
        """Send a container's output so far, of the last lines; or, followed, until it ends."""
        pod = self.store.get("pods", at.namespace, at.name)
        container = self.kubelet.workers[pod["metadata"]["uid"]].container
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        lines = os.pread(container.log.fileno(), 1 << 20, 0).splitlines(keepends=True)
        sent = sum(map(len, lines[: -int(request.query["tailLines"])]))
        with contextlib.suppress(ConnectionError):
            while request.transport is not None:
                has_ended = container.exit_code is not None or request.query.get("follow") != "true"
                await response.write(chunk := os.pread(container.log.fileno(), 1 << 20, sent))
                sent += len(chunk)
                if has_ended:
                    break
                await asyncio.sleep(_LOG_POLL_SEC)
        return response
