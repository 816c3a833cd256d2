"""HTTP server: connections, authentication, authorization, static documents, and faults of requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.support.kubernetes.api.answers import TOKEN, Json, Refusal, no_such_path, not_allowed
from tests.support.kubernetes.api.write import APPLY
from tests.support.kubernetes.store.resources import Target, document, target
from tests.support.machines.fake_tenancy import token_error

if TYPE_CHECKING:
    from tests.support.kubernetes.api.handlers import Api
    from tests.support.kubernetes.faults import Faults

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
_MAX_BODY_BYTES = 16 * 2**20
_REASONS = {403: "Forbidden", 409: "Conflict", 429: "TooManyRequests", 503: "ServiceUnavailable", 504: "Timeout"}


def status_response(refusal: Refusal) -> web.Response:
    return web.json_response(refusal.body, status=refusal.code)


def verb_of(request: web.Request, at: Target) -> str:
    """Return the RBAC verb; a WebSocket exec is a `get` of pods/exec, a SPDY one a `create`."""
    if request.method != "GET":
        return _VERBS[request.method]
    if at.name:
        return "get"
    return "watch" if request.query.get("watch") in ("true", "1") else "list"


class Server:
    """HTTP server that can stop listening and resume on the same port."""

    def __init__(
        self,
        api: Api,
        faults: Faults,
        tls: ssl.SSLContext,
        signer: tuple[str, str] | None,
    ) -> None:
        self._api, self._faults, self._tls, self._signer = api, faults, tls, signer
        self.port = 0
        self.requests: list[str] = []
        self._listener: asyncio.Server | None = None
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=1.0)

    async def start(self) -> None:
        await self._runner.setup()
        await self.start_server()

    async def start_server(self) -> None:
        """Start or resume listening, always on the same port."""
        if self._listener is None:
            loop = asyncio.get_running_loop()
            assert self._runner.server is not None
            self._listener = await loop.create_server(
                self._runner.server, "127.0.0.1", self.port, ssl=self._tls, backlog=512
            )
            self.port = self._listener.sockets[0].getsockname()[1]

    async def stop_listening(self) -> None:
        """Refuse new connections and cut all open ones, as if the process had died."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        assert self._runner.server is not None
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    async def stop(self) -> None:
        await self.stop_listening()
        await self._runner.cleanup()

    def _authenticate(self, request: web.Request) -> None:
        """Check that the user is admin, the only one. Raises Refusal."""
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        is_signed = self._signer is not None and token_error(self._signer[1], self._signer[0], token) is None
        if not (token == TOKEN or is_signed) or self._faults.are_credentials_expired:
            raise Refusal(401, "Unauthorized", "Unauthorized")

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        await self._faults.responsive.wait()
        self.requests.append(f"{request.method} {request.path_qs}")
        fault = self._faults.of_request(request.method, request.path)
        if fault is not None:
            return status_response(Refusal(fault.status, _REASONS.get(fault.status, "InternalError"), fault.message))
        try:
            self._authenticate(request)
            return await self._route(request)
        except Refusal as refusal:
            return status_response(refusal)
        except (ConnectionError, asyncio.IncompleteReadError):
            # The client disconnected during the request.
            return web.Response(status=499)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        fixed = self._static_document(request)
        if fixed is not None:
            return fixed
        at = target(request.path)
        if at is None:
            self._authorize_unknown(request)
            raise no_such_path()
        body = await self._body(request)
        if at.resource.kind == "SelfSubjectAccessReview":
            return web.json_response(self._review_access(body), status=201)
        self.authorize(verb_of(request, at), at)
        if request.content_type == APPLY and self._api.store.find(at.resource.key, at.namespace, at.name) is None:
            self.authorize("create", at)
        if at.subresource == "exec" and request.method == "POST":
            self.authorize("get", at)  # SPDY needs only `create`, but is not implemented
        if at.resource.kind == "RoleBinding" and isinstance(body, dict) and "roleRef" in body:
            self._check_binding(at, str(body["roleRef"]["name"]))
        return await self._api.handle(request, at, body)

    def authorize(self, verb: str, at: Target) -> None:
        """Check the user's permission. Raises Refusal."""
        if not self.allowed(verb, at.resource.key, at.subresource, at.namespace, at.name):
            namespace = at.namespace or (at.name if at.resource.plural == "namespaces" else "")
            raise not_allowed(verb, at.resource.key, at.subresource, namespace, at.name)

    def _check_binding(self, at: Target, role: str) -> None:
        """Check that the role of a binding exists if the user may not `bind` it: the API compares what it grants."""
        key = "roles.rbac.authorization.k8s.io"
        if not self.allowed("bind", key, "", at.namespace, role):
            self._api.store.get(key, at.namespace, role)

    def _authorize_unknown(self, request: web.Request) -> None:
        """Reject a list of an unknown kind with 403 if the user may not list it; otherwise it is a 404."""
        match request.path.split("/"):
            case ["", "apis", group, _, "namespaces", namespace, plural] if request.method == "GET":
                key = f"{plural}.{group}"
                if not self.allowed("list", key, "", namespace, ""):
                    raise not_allowed("list", key, "", namespace, "")

    def allowed(self, verb: str, key: str, subresource: str, namespace: str, name: str) -> bool:
        resource = f"{key}/{subresource}" if subresource else key
        return not self._faults.denies(verb=verb, resource=resource, namespace=namespace, name=name)

    def _static_document(self, request: web.Request) -> web.StreamResponse | None:
        """Return the response with a static document, or None for other paths."""
        path = request.path.rstrip("/")
        if path in ("/api", "/apis"):
            discovery = document(f"discovery-{path[1:]}.json")
            return web.Response(text=json.dumps(discovery), headers={"Content-Type": _AGGREGATED})
        if path == "/version":
            return web.json_response(document("discovery-version.json"))
        if path == "/openapi/v3":
            return web.json_response(document("openapi/index.json"))
        if path.startswith("/openapi/v3/"):
            name = path.removeprefix("/openapi/v3/").replace("/", "_")
            with contextlib.suppress(FileNotFoundError):
                return web.json_response(document(f"openapi/{name}.json"))
            raise no_such_path()
        return None

    async def _body(self, request: web.Request) -> Json | list[Any] | None:
        if not request.body_exists or request.headers.get("Upgrade"):
            return None
        raw = await request.read()
        return json.loads(raw) if raw else None  # type: ignore[no-any-return]

    def _review_access(self, body: Any) -> Json:
        attributes = body["spec"]["resourceAttributes"]
        plural, group = attributes["resource"], attributes.get("group", "")
        key = f"{plural}.{group}" if group else plural
        names = (attributes.get(part, "") for part in ("subresource", "namespace", "name"))
        return {**body, "status": {"allowed": self.allowed(attributes["verb"], key, *names)}}
