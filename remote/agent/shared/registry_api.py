"""Client of a registry's distribution API (HTTP v2) on the build VM.

The login is sent over TLS, only to the registry's own host and to its known token services, and never follows a
redirect to another host. Every response has a size limit and a time limit, because a server may send endlessly.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.responses import read_response

REQUEST_TIMEOUT_SEC = 60.0  # for one response, including its body
MAX_MANIFEST_BYTES = 4 << 20  # limit of registries (distribution-spec, "Pushing Manifests")
MAX_TOKEN_BYTES = 1 << 20
MAX_BLOB_BYTES = 16 << 20  # for blobs read into memory: a document, an image's configuration
MAX_PAGES = 20
MAX_REDIRECTS = 5
CERTIFICATES_FOLDER = Path("/etc/docker/certs.d")
MANIFEST_TYPE, INDEX_TYPE = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPES = (
    "application/vnd.docker.distribution.manifest.v2+json",
    MANIFEST_TYPE,
    "application/vnd.docker.distribution.manifest.list.v2+json",
    INDEX_TYPE,
)
STATUS_FULL = 507
TRANSIENT_STATUSES = frozenset({429, 500, 502, 503, 504})
# Registries whose token service has another host name; registry.token_hosts adds more.
TOKEN_HOSTS = {"registry-1.docker.io": "auth.docker.io", "registry.gitlab.com": "gitlab.com"}
FULL_REGISTRY_REMEDY = "delete unused images there, or have its quota raised"
CREATE_REPOSITORY_HINT = "create the repository if the registry requires it"
_RESPONSE_ERRORS = (OSError, ValueError, RecursionError, http.client.HTTPException)  # from a request, or its parsing
_LOOPBACK = re.compile(r"(localhost|127\.[\d.]+|::1)\Z")


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def json_objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a JSON list, without other items; empty if the value is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def json_object(value: Any) -> dict[str, Any]:
    """Return the value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def size_of(descriptor: Any) -> int | None:
    """Return the size in a manifest's descriptor; None if it is missing or invalid."""
    size = json_object(descriptor).get("size")
    return size if type(size) is int and 0 <= size < 1 << 63 else None


def read_login(folder: str, host: str) -> str | None:
    """Read `user:password` in base64 from the client's configuration."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(Path(folder, "config.json").read_text())["auths"][host]["auth"])
    return None


class _Response(NamedTuple):
    headers: Any
    content: bytes


class Registry:
    """Client of one repository in a registry. All methods raise VmAgentError."""

    def __init__(self, host: str, path: str, login: str | None, token_hosts: Collection[str] = ()) -> None:
        # Plain HTTP only to this machine, like the engine.
        scheme = "http" if is_loopback_http(f"http://{host}") else "https"
        self.base, self.host, self.path, self.login = f"{scheme}://{host}/v2", host, path, login
        self.token_hosts = {
            _hostname_without_port(host),
            TOKEN_HOSTS.get(host, _hostname_without_port(host)),
            *token_hosts,
        }
        self.bearer: str | None = None
        tls = ssl.create_default_context()
        for certificate in CERTIFICATES_FOLDER.joinpath(host).glob("*.crt"):
            try:
                tls.load_verify_locations(certificate)
            except OSError as error:
                raise VmAgentError(
                    "usage", f"{certificate}: cannot be read: {error.strerror or error}", remedy="correct the file"
                ) from error
        # Requests to this machine have no TLS. They bypass the proxy, which could read the login.
        proxies = {kind: proxy for kind, proxy in urllib.request.getproxies().items() if kind != "http"}
        handlers = (urllib.request.HTTPSHandler(context=tls), urllib.request.ProxyHandler(proxies), _Redirects(host))
        self.opener = urllib.request.build_opener(*handlers)

    @property
    def user(self) -> str:
        """The login's user name, for messages."""
        with contextlib.suppress(ValueError):
            return base64.b64decode(self.login or "").decode().partition(":")[0] or "anonymous"
        return "anonymous"

    def manifest(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """Get digest and content of the manifest of a tag or digest; None if not found."""
        content = self.manifest_bytes(name)
        return None if content is None else (digest_of(content), self._parse_manifest(content))

    def manifest_bytes(self, name: str) -> bytes | None:
        """Get a manifest's bytes, verified if `name` is a digest; None if not found."""
        content = self._get_verified("manifests", name, {"Accept": ", ".join(MANIFEST_TYPES)})
        if content is not None:
            self._parse_manifest(content)
        return content

    def referrers(self, digest: str) -> list[dict[str, Any]] | None:
        """List the referrers of a manifest, all pages; None if the registry does not support it (OCI 1.1)."""
        url: str | None = f"{self.base}/{self.path}/referrers/{digest}"
        descriptors: list[dict[str, Any]] = []
        for _ in range(MAX_PAGES):
            try:
                content, url = self._get_page(str(url))
            except VmAgentError as failed:
                if failed.kind == "failed":  # older registries have no such endpoint; their errors vary
                    return None
                raise
            if content is None:
                return None
            descriptors += json_objects(self._parse_manifest(content).get("manifests"))
            if url is None:
                return descriptors
        raise VmAgentError("refused", f"{self.host} lists the referrers of {digest} on more than {MAX_PAGES} pages")

    def _get_page(self, url: str) -> tuple[bytes | None, str | None]:
        """Get a page of a list, and the URL of the next page."""
        response = self._request(url, {"Accept": INDEX_TYPE})
        if response is None:
            return None, None
        next_link = re.match(r'<([^>]+)>; *rel="?next"?', response.headers.get("Link", ""))
        if next_link is None:
            return response.content, None
        url = self._resolve_url(url, next_link[1])
        if _origin(url) != _origin(self.base):
            raise VmAgentError("refused", f"{self.host} continues its list on another host, {_hostname(url)}")
        return response.content, url

    def blob(self, digest: str) -> bytes | None:
        """Get a small blob, verified; None if not found."""
        return self._get_verified("blobs", digest, max_bytes=MAX_BLOB_BYTES)

    def _get_verified(
        self, kind: str, name: str, headers: dict[str, str] | None = None, max_bytes: int = MAX_MANIFEST_BYTES
    ) -> bytes | None:
        """Get a manifest's or blob's content, verified if `name` is a digest; None if not found."""
        response = self._request(f"{self.base}/{self.path}/{kind}/{name}", headers, max_bytes=max_bytes)
        if response is not None and name.startswith("sha256:") and name != digest_of(response.content):
            raise VmAgentError("refused", f"{self.host} returned content for {self.path} that does not match {name}")
        return None if response is None else response.content

    def _parse_manifest(self, content: bytes) -> dict[str, Any]:
        try:
            manifest = json.loads(content)
            if not isinstance(manifest, dict) or "schemaVersion" not in manifest:
                raise ValueError
        except (ValueError, RecursionError) as error:
            actual = "a web page" if content.lstrip()[:1] == b"<" else f"{len(content)} bytes of something else"
            remedy = "correct registry.image, or check the proxy between the VM and the registry"
            raise VmAgentError(
                "usage", f"{self.host} returned {actual} instead of the manifest of {self.path}", remedy=remedy
            ) from error
        return manifest

    def check_push_access(self) -> None:
        """Start an upload and cancel it, to detect a login without push permission before gigabytes are sent.

        Also detects a missing repository that the registry does not create automatically. Other errors are ignored
        here: the push itself reports them.
        """
        url = f"{self.base}/{self.path}/blobs/uploads/"
        try:
            upload = self._request(url, method="POST")
        except VmAgentError as failed:
            if failed.kind in ("unauthorized", "forbidden"):
                raise
            return
        if upload is None:
            raise VmAgentError("absent", f"{self.host} has no repository {self.path}", remedy=CREATE_REPOSITORY_HINT)
        with contextlib.suppress(VmAgentError):  # an upload also expires automatically
            location = self._resolve_url(url, upload.headers.get("Location", url))
            if location != url and _origin(location) == _origin(self.base):
                self._request(location, method="DELETE")

    def has_blob(self, digest: str) -> bool:
        url = f"{self.base}/{self.path}/blobs/{digest}"
        return self._request(url, method="HEAD") is not None

    def send_blob(self, content: Path | bytes, digest: str) -> None:
        """Upload a file or bytes in one request. The registry verifies the digest before it stores the blob."""
        url = f"{self.base}/{self.path}/blobs/uploads/"
        upload = self._request(url, method="POST")
        location = None if upload is None else upload.headers.get("Location")
        if not location:
            raise VmAgentError("failed", f"{self.host} returned no upload location for {self.path}")
        url = self._resolve_url(url, location)
        if not (url.startswith("https://") or (self.base.startswith("http://") and is_loopback_http(url))):
            raise VmAgentError("refused", f"{self.host} requests the upload at {url}, which is not https")
        url += f"{'&' if '?' in url else '?'}{urllib.parse.urlencode({'digest': digest})}"
        if self._request(url, {"Content-Type": "application/octet-stream"}, method="PUT", data=content) is None:
            raise VmAgentError("transient", f"{self.host} lost the upload to {self.path}")

    def send_manifest(self, name: str, content: bytes, media_type: str) -> bool:
        """Put a manifest under a tag or its digest. Returns True if the registry lists it as a referrer (OCI 1.1)."""
        url = f"{self.base}/{self.path}/manifests/{name}"
        response = self._request(url, {"Content-Type": media_type}, method="PUT", data=content)
        if response is None:
            raise VmAgentError("absent", f"{self.host} has no repository {self.path}", remedy=CREATE_REPOSITORY_HINT)
        return bool(response.headers.get("OCI-Subject"))

    def _resolve_url(self, url: str, location: str) -> str:
        """Resolve the location in a response from `url`."""
        try:
            url = urllib.parse.urljoin(url, location)
            _origin(url)  # ValueError if the port is invalid
        except ValueError as error:
            raise VmAgentError("refused", f"{self.host} redirects to an invalid URL: {location[:200]!r}") from error
        return url

    def _request(
        self,
        url: str,
        headers: dict[str, str] | None = None,
        *,
        method: str = "GET",
        data: bytes | Path | None = None,
        max_bytes: int = MAX_MANIFEST_BYTES,
    ) -> _Response | None:
        """Send a request, with the login if it goes to this registry; None for 404."""
        for is_last in (False, True):
            login = f"Bearer {self.bearer}" if self.bearer else f"Basic {self.login}" if self.login else None
            try:
                authorization = {"Authorization": login} if login and _origin(url) == _origin(self.base) else {}
                return self._send_request(url, {**(headers or {}), **authorization}, method, data, max_bytes)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                challenge = error.headers.get("WWW-Authenticate", "")
                if error.code != 401 or is_last or not challenge.lower().startswith("bearer "):
                    raise self._to_error(error, method) from error
                self.bearer = self._fetch_token(challenge)
            except _RESPONSE_ERRORS as error:
                raise _connection_error(error, self.host) from error
        raise AssertionError("unreachable")

    def _send_request(
        self, url: str, headers: dict[str, str], method: str, data: bytes | Path | None, max_bytes: int
    ) -> _Response:
        """Send `data` (bytes, or a file's content) and read the response."""
        data = b"" if method == "POST" else data
        if isinstance(data, Path):
            headers = {**headers, "Content-Length": str(data.stat().st_size)}
        try:
            with contextlib.ExitStack() as stack:
                body: Any = stack.enter_context(data.open("rb")) if isinstance(data, Path) else data
                request = urllib.request.Request(url, data=body, headers=headers, method=method)  # noqa: S310 - https, or this machine
                response = stack.enter_context(self.opener.open(request, timeout=REQUEST_TIMEOUT_SEC))
                content = read_response(response, max_bytes=max_bytes, timeout_sec=REQUEST_TIMEOUT_SEC)
        except urllib.error.HTTPError as error:
            error.close()  # releases the connection
            raise
        if len(content) > max_bytes:
            raise VmAgentError("refused", f"{_hostname(url)}: the response to {url} exceeds {max_bytes >> 20} MiB")
        return _Response(response.headers, content)

    def _fetch_token(self, challenge: str) -> str:
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        scope = f"repository:{self.path}:pull,push"
        query = urllib.parse.urlencode({"service": fields.get("service", ""), "scope": scope})
        headers = {"Authorization": f"Basic {self.login}"} if self.login else {}
        realm = fields.get("realm", "")
        try:
            self._check_realm(realm)
            response = json.loads(self._send_request(f"{realm}?{query}", headers, "GET", None, MAX_TOKEN_BYTES).content)
            token = response.get("token") or response["access_token"]
        except urllib.error.HTTPError as error:
            if error.code in TRANSIENT_STATUSES:
                raise self._to_error(error, "GET") from error
            raise VmAgentError(
                "unauthorized", f"{self.host} refused the login of user {self.user}: {_status_line(error)}"
            ) from error
        except (*_RESPONSE_ERRORS, KeyError, AttributeError) as error:
            raise _connection_error(error, f"{realm}, the token service of {self.host}") from error
        # An unprintable token in a header would raise an error whose message contains the token.
        if not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise VmAgentError("refused", f"{realm}, the token service of {self.host}, returned an invalid token")
        return token

    def _check_realm(self, realm: str) -> None:
        if not (realm.startswith("https://") or (self.base.startswith("http://") and is_loopback_http(realm))):
            raise VmAgentError("refused", f"{self.host} directs the login to {realm or 'no URL'}, which is not https")
        if _hostname(realm) not in self.token_hosts:
            raise VmAgentError(
                "refused",
                f"{self.host} directs the login of {self.user} to {_hostname(realm)}",
                remedy="if that is its token service, add it to registry.token_hosts",
            )

    def _to_error(self, error: urllib.error.HTTPError, method: str) -> VmAgentError:
        if error.code == 401:
            return VmAgentError(
                "unauthorized", f"{self.host} refused user {self.user} for {self.path}: {_status_line(error)}"
            )
        if error.code == 403 and method in ("GET", "HEAD"):
            return VmAgentError(
                "forbidden",
                f"{self.host}: user {self.user} may not read {self.path}: {_status_line(error)}",
                remedy="grant the user pull "
                f"permission, or correct registry.image or registry.user; {CREATE_REPOSITORY_HINT}",
            )
        if error.code == 403:
            return VmAgentError(
                "forbidden", push_forbidden_message(self.host, self.user, self.path, _status_line(error))
            )
        if error.code == STATUS_FULL:
            return VmAgentError(
                "full",
                f"{self.host} has no space left for {self.path}: {_status_line(error)}",
                remedy=FULL_REGISTRY_REMEDY,
            )
        kind = "transient" if error.code in TRANSIENT_STATUSES else "failed"
        return VmAgentError(kind, f"{self.host} returned {_status_line(error)} for {self.path}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that sends the login only to the same server, and never follows TLS to plain HTTP."""

    max_redirections = MAX_REDIRECTS

    def __init__(self, host: str) -> None:
        self._host = host

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except ValueError as error:  # an invalid port or address, which no retry changes
            fp.close()
            location = str(headers.get("Location", ""))[:200]
            raise VmAgentError("refused", f"{self._host} redirects to an invalid URL: {location!r}") from error

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _origin(newurl)  # ValueError if the port is invalid
        if not (newurl.startswith("https://") or (req.type == "http" and is_loopback_http(newurl))):
            fp.close()
            raise VmAgentError("refused", f"{self._host} redirects to {newurl}, which is not https")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and _origin(newurl) != _origin(req.full_url):
            request.remove_header("Authorization")
        return request


def push_forbidden_message(host: str, user: str, path: str, status: str) -> str:
    """Build the message for a valid login without push permission."""
    return (
        f"{host}: user {user} may not push to {path}: {status}; grant the user push permission, or correct "
        f"registry.image or registry.user; {CREATE_REPOSITORY_HINT}"
    )


def _status_line(error: urllib.error.HTTPError) -> str:
    return f"{error.code} {error.reason}"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _hostname(url: str) -> str:
    return urllib.parse.urlsplit(url).hostname or url


def _hostname_without_port(host: str) -> str:
    """Remove the port from a registry's host."""
    return _hostname(f"//{host}")


def is_loopback_http(url: str) -> bool:
    """Return True for a plain HTTP URL of this machine: traffic to it does not leave the machine."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "http" and _LOOPBACK.match(parts.hostname or "") is not None


def _connection_error(error: Exception, server: str) -> VmAgentError:
    """Convert an error without a readable response: transient, unless the certificate is not trusted."""
    cause = getattr(error, "reason", None) or error
    # No retry changes an invalid URL, which urllib reports by several classes.
    is_invalid_url = isinstance(cause, http.client.InvalidURL) or (
        isinstance(cause, ValueError) and not isinstance(cause, json.JSONDecodeError)
    )
    kind = "failed" if isinstance(cause, ssl.SSLCertVerificationError) or is_invalid_url else "transient"
    text = str(cause) if isinstance(cause, OSError) else f"{type(error).__name__}: {cause}"
    return VmAgentError(kind, f"{server}: {text}")
