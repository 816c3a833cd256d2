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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.responses import read_response

REQUEST_TIMEOUT_SEC = 60.0  # for one response, including its body
MAX_MANIFEST_BYTES = 4 << 20  # limit of registries (distribution-spec, "Pushing Manifests")
MAX_TOKEN_BYTES = 1 << 20
MAX_REDIRECTS = 5
MAX_CONNECTIONS = 8
CERTIFICATES_FOLDER = Path("/etc/docker/certs.d")
MANIFEST_TYPES = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.index.v1+json",
)
TRANSIENT_STATUSES = frozenset({429, 500, 502, 503, 504})
# Registries whose token service has another host name; registry.token_hosts adds more.
TOKEN_HOSTS = {"registry-1.docker.io": "auth.docker.io", "registry.gitlab.com": "gitlab.com"}
CREATE_REPOSITORY_HINT = "create the repository if the registry requires it"
CERTIFICATE_REMEDIES = {  # by OpenSSL's code
    9: "check the VM's clock",  # not yet valid
    10: "have the certificate renewed, or check the VM's clock",  # expired
    62: "correct the host's name, or have it added to the certificate",
}
_RESPONSE_ERRORS = (OSError, ValueError, RecursionError, http.client.HTTPException)  # from a request, or its parsing
_REALM = re.compile(r'\brealm="?([^",]*)', re.IGNORECASE)  # more than the engine accepts
_LOOPBACK = re.compile(r"(localhost|127\.[\d.]+|::1)\Z")


class _Response(NamedTuple):
    headers: Any
    content: bytes


class Registry:
    """Client of one repository in a registry. All methods raise VmAgentError."""

    def __init__(self, host: str, path: str, login: str | None, token_hosts: Collection[str] = ()) -> None:
        # Plain HTTP only to this machine, like the engine.
        scheme = "http" if is_loopback_http(f"http://{host}") else "https"
        self.base, self.host, self.path, self.login = f"{scheme}://{host}/v2", host, path, login
        name = _hostname(f"//{host}")  # without its port
        self.token_hosts = {name, TOKEN_HOSTS.get(host, name), *token_hosts}
        self.authorization: str | None = None  # what the registry's challenge asks for; unknown before it
        tls = ssl.create_default_context()
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13 refuses authorities that the engine accepts
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
        """Get digest and content of the manifest of a tag or digest, verified if a digest; None if not found."""
        response = self._request(f"{self.base}/{self.path}/manifests/{name}", {"Accept": ", ".join(MANIFEST_TYPES)})
        if response is None:
            return None
        digest = f"sha256:{hashlib.sha256(response.content).hexdigest()}"
        if name.startswith("sha256:") and name != digest:
            raise VmAgentError("refused", f"{self.host} returned content for {self.path} that does not match {name}")
        return digest, self._parse_manifest(response.content)

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

    def missing_blobs(self, manifest: dict[str, Any]) -> list[str]:
        """List the digests of a manifest's config and layers that the registry does not have."""
        parts = [manifest.get("config"), *(manifest.get("layers") or ())]
        digests = [str(part.get("digest")) for part in parts if isinstance(part, dict)]

        def is_missing(digest: str) -> bool:
            return self._request(f"{self.base}/{self.path}/blobs/{urllib.parse.quote(digest)}", method="HEAD") is None

        with ThreadPoolExecutor(MAX_CONNECTIONS) as threads:
            return [digest for digest, missing in zip(digests, threads.map(is_missing, digests)) if missing]

    def check_push_access(self) -> None:
        """Start an upload and cancel it, to detect a login without push permission before gigabytes are sent.

        Also detects a missing repository that the registry does not create automatically. Other errors are ignored
        here: the push itself reports them.
        """
        url = f"{self.base}/{self.path}/blobs/uploads/"
        try:
            upload = self._request(url, method="POST")
        except VmAgentError as failed:
            if failed.kind in ("unauthorized", "forbidden", "refused"):
                raise
            return
        if upload is None:
            raise VmAgentError("absent", f"{self.host} has no repository {self.path}", remedy=CREATE_REPOSITORY_HINT)
        with contextlib.suppress(VmAgentError, ValueError):  # an invalid URL; an upload also expires automatically
            location = urllib.parse.urljoin(url, upload.headers.get("Location", url))
            if location != url and _origin(location) == _origin(self.base):
                self._request(location, method="DELETE")

    def _request(self, url: str, headers: dict[str, str] | None = None, *, method: str = "GET") -> _Response | None:
        """Send a request, and the login once the registry asks for it; None for 404."""
        for is_last in (False, True):
            is_own = self.authorization is not None and _origin(url) == _origin(self.base)
            authorization = {"Authorization": str(self.authorization)} if is_own else {}
            try:
                return self._send_request(url, {**(headers or {}), **authorization}, method, MAX_MANIFEST_BYTES)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                challenge = error.headers.get("WWW-Authenticate", "")
                if error.code != 401 or is_last or not (self.login or _is_bearer(challenge)):
                    raise self._to_error(error, method) from error
                self.authorization = (
                    f"Bearer {self._fetch_token(challenge)}" if _is_bearer(challenge) else f"Basic {self.login}"
                )
            except _RESPONSE_ERRORS as error:
                raise self._connection_error(error, self.host) from error
        raise AssertionError("unreachable")

    def check_challenge(self) -> None:
        """Check, without a login, where the registry directs a login: the engine sends it there, wherever that is."""
        try:
            self._send_request(f"{self.base}/", {}, "GET", MAX_MANIFEST_BYTES)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise self._to_error(error, "GET") from error
            for challenge in error.headers.get_all("WWW-Authenticate", []):
                for realm in _REALM.findall(challenge) or [""] if _is_bearer(challenge) else ():
                    self._check_realm(realm)
        except _RESPONSE_ERRORS as error:
            raise self._connection_error(error, self.host) from error

    def _send_request(self, url: str, headers: dict[str, str], method: str, max_bytes: int) -> _Response:
        """Send a request without content and read the response."""
        data = b"" if method == "POST" else None
        request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310 - https, or this machine
        try:
            with self.opener.open(request, timeout=REQUEST_TIMEOUT_SEC) as response:
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
            response = json.loads(self._send_request(f"{realm}?{query}", headers, "GET", MAX_TOKEN_BYTES).content)
            token = response.get("token") or response["access_token"]
        except urllib.error.HTTPError as error:
            if error.code in TRANSIENT_STATUSES:
                raise self._to_error(error, "GET") from error
            raise VmAgentError(
                "unauthorized", f"{self.host} refused the login of user {self.user}: {_status_line(error)}"
            ) from error
        except (*_RESPONSE_ERRORS, KeyError, AttributeError) as error:
            raise self._connection_error(error, f"{realm}, the token service of {self.host}") from error
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
            return self.push_refusal("unauthorized", _status_line(error))
        if error.code == 403 and method in ("GET", "HEAD"):
            return VmAgentError(
                "forbidden",
                f"{self.host}: user {self.user} may not read {self.path}: {_status_line(error)}",
                remedy="grant the user pull "
                f"permission, or correct registry.image or registry.user; {CREATE_REPOSITORY_HINT}",
            )
        if error.code == 403:
            return self.push_refusal("forbidden", _status_line(error))
        kind = "transient" if error.code in TRANSIENT_STATUSES else "failed"
        return VmAgentError(kind, f"{self.host} returned {_status_line(error)} for {self.path}")

    def push_refusal(self, kind: str, status: str) -> VmAgentError:
        """Build the error for a login that was refused (unauthorized), or is valid and may not push (forbidden)."""
        if kind == "unauthorized":
            return VmAgentError(kind, f"{self.host} refused user {self.user} for {self.path}: {status}")
        return VmAgentError(
            kind,
            f"{self.host}: user {self.user} may not push to {self.path}: {status}",
            remedy="grant the user push permission, or correct registry.image or registry.user; "
            + CREATE_REPOSITORY_HINT,
        )

    def _connection_error(self, error: Exception, server: str) -> VmAgentError:
        """Convert an error without a readable response: transient, unless no retry changes it."""
        cause = getattr(error, "reason", None) or error
        text = str(cause) if isinstance(cause, OSError) else f"{type(error).__name__}: {cause}"
        if isinstance(cause, ssl.SSLCertVerificationError):
            trusted = CERTIFICATES_FOLDER / self.host / "ca.crt"
            authority_remedy = (
                f"on the VM put its authority's certificate into {trusted}, where the engine reads it, too"
            )
            remedy = CERTIFICATE_REMEDIES.get(cause.verify_code, authority_remedy)
            return VmAgentError(
                "usage", f"{server}: its certificate is not valid: {cause.verify_message}", remedy=remedy
            )
        # An invalid URL, which urllib reports by several classes.
        is_invalid_url = isinstance(cause, http.client.InvalidURL) or (
            isinstance(cause, ValueError) and not isinstance(cause, json.JSONDecodeError)
        )
        return VmAgentError("failed" if is_invalid_url else "transient", f"{server}: {text}")


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
        if request is not None:
            request.method = req.get_method()  # before Python 3.13 a HEAD became a GET of the whole blob
        if request is not None and _origin(newurl) != _origin(req.full_url):
            request.remove_header("Authorization")
        return request


def _is_bearer(challenge: str) -> bool:
    return challenge.lower().startswith("bearer ")


def _status_line(error: urllib.error.HTTPError) -> str:
    return f"{error.code} {error.reason}"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _hostname(url: str) -> str:
    return urllib.parse.urlsplit(url).hostname or url


def is_loopback_http(url: str) -> bool:
    """Return True for a plain HTTP URL of this machine: traffic to it does not leave the machine."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "http" and _LOOPBACK.match(parts.hostname or "") is not None
