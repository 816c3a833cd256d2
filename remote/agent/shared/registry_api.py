"""Client of a registry's distribution API (HTTP v2) on the build VM.

The login is sent over TLS, only to the registry's own host and to its known token services. A redirect is an error.
Every response has a size limit and a time limit, because a server may send endlessly.
"""

from __future__ import annotations

import base64
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
from typing import Any

from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.responses import read_response

REQUEST_TIMEOUT_SEC = 60.0  # for one response, including its body
MAX_RESPONSE_BYTES = 4 << 20  # limit of registries (distribution-spec, "Pushing Manifests")
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
_RESPONSE_ERRORS = (OSError, ValueError, RecursionError, http.client.HTTPException)  # from a request, or its parsing
_REALM = re.compile(r'\brealm="?([^",]*)', re.IGNORECASE)  # more than the engine accepts
_LOOPBACK = re.compile(r"(localhost|127\.[\d.]+|::1)\Z")


class Registry:
    """Client of one repository in a registry. All methods raise VmAgentError."""

    def __init__(self, host: str, path: str, login: str, token_hosts: Collection[str] = ()) -> None:
        # Plain HTTP only to this machine, like the engine.
        scheme = "http" if is_loopback_http(f"http://{host}") else "https"
        self.base, self.host, self.path, self.login = f"{scheme}://{host}/v2", host, path, login
        name = str(urllib.parse.urlsplit(f"//{host}").hostname)  # without its port
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
        handlers = (urllib.request.HTTPSHandler(context=tls), urllib.request.ProxyHandler(proxies), _NoRedirects)
        self.opener = urllib.request.build_opener(*handlers)

    @property
    def user(self) -> str:
        """The login's user name, for messages."""
        return base64.b64decode(self.login).decode().partition(":")[0]

    def manifest(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """Get digest and content of the manifest of a tag or digest, verified if a digest; None if not found."""
        content = self._request(f"{self.path}/manifests/{name}", {"Accept": ", ".join(MANIFEST_TYPES)})
        if content is None:
            return None
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if name.startswith("sha256:") and name != digest:
            raise VmAgentError("refused", f"{self.host} returned content for {self.path} that does not match {name}")
        return digest, self._parse_manifest(content)

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
        """Start an upload, which expires, to detect a login without push permission before gigabytes are sent.

        Also detects a missing repository that the registry does not create automatically. Other errors are ignored
        here: the push itself reports them.
        """
        try:
            answer = self._request(f"{self.path}/blobs/uploads/", method="POST")
        except VmAgentError as failed:
            if failed.kind in ("unauthorized", "forbidden", "refused"):
                raise
            return
        if answer is None:
            raise VmAgentError("absent", f"{self.host} has no repository {self.path}", remedy=CREATE_REPOSITORY_HINT)

    def _request(self, path: str, headers: dict[str, str] | None = None, *, method: str = "GET") -> bytes | None:
        """Send a request, and the login once the registry asks for it. Return the response; None for 404."""
        for is_last in (False, True):
            authorization = {"Authorization": self.authorization} if self.authorization is not None else {}
            try:
                return self._send_request(f"{self.base}/{path}", {**(headers or {}), **authorization}, method)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                challenge = error.headers.get("WWW-Authenticate", "")
                if error.code != 401 or is_last:
                    raise self._to_error(error) from error
                self.authorization = (
                    f"Bearer {self._fetch_token(challenge)}" if _is_bearer(challenge) else f"Basic {self.login}"
                )
            except _RESPONSE_ERRORS as error:
                raise self._connection_error(error, self.host) from error
        raise AssertionError("unreachable")

    def check_challenge(self) -> None:
        """Check, without a login, where the registry directs a login: the engine sends it there, wherever that is."""
        try:
            self._send_request(f"{self.base}/", {})
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise self._to_error(error) from error
            for challenge in error.headers.get_all("WWW-Authenticate", []):
                for realm in _REALM.findall(challenge) or [""] if _is_bearer(challenge) else ():
                    self._check_realm(realm)
        except _RESPONSE_ERRORS as error:
            raise self._connection_error(error, self.host) from error

    def _send_request(self, url: str, headers: dict[str, str], method: str = "GET") -> bytes:
        """Send a request without content and read the response."""
        data = b"" if method == "POST" else None
        request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310 - https, or this machine
        try:
            with self.opener.open(request, timeout=REQUEST_TIMEOUT_SEC) as response:
                content = read_response(response, max_bytes=MAX_RESPONSE_BYTES, timeout_sec=REQUEST_TIMEOUT_SEC)
        except urllib.error.HTTPError as error:
            error.close()  # releases the connection
            raise
        if len(content) > MAX_RESPONSE_BYTES:
            raise VmAgentError("refused", f"{self.host}: the response to {url} exceeds {MAX_RESPONSE_BYTES >> 20} MiB")
        return content

    def _fetch_token(self, challenge: str) -> str:
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        scope = f"repository:{self.path}:pull,push"
        query = urllib.parse.urlencode({"service": fields.get("service", ""), "scope": scope})
        realm = fields.get("realm", "")
        self._check_realm(realm)
        try:
            response = json.loads(self._send_request(f"{realm}?{query}", {"Authorization": f"Basic {self.login}"}))
            token = response.get("token") or response["access_token"]
        except urllib.error.HTTPError as error:
            if error.code in TRANSIENT_STATUSES:
                raise self._to_error(error) from error
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
        try:
            name = urllib.parse.urlsplit(realm).hostname
        except ValueError:
            name = realm
        if name not in self.token_hosts:
            raise VmAgentError(
                "refused",
                f"{self.host} directs the login of {self.user} to {name}",
                remedy="if that is its token service, add it to registry.token_hosts",
            )

    def _to_error(self, error: urllib.error.HTTPError) -> VmAgentError:
        if error.code in (401, 403):
            return self.refusal("unauthorized" if error.code == 401 else "forbidden", _status_line(error))
        kind = "transient" if error.code in TRANSIENT_STATUSES else "failed"
        return VmAgentError(kind, f"{self.host} returned {_status_line(error)} for {self.path}")

    def refusal(self, kind: str, status: str) -> VmAgentError:
        """Build the error for a login that was refused (unauthorized), or is valid and has no right (forbidden)."""
        if kind == "unauthorized":
            return VmAgentError(kind, f"{self.host} refused user {self.user} for {self.path}: {status}")
        return VmAgentError(
            kind,
            f"{self.host}: user {self.user} may not pull from and push to {self.path}: {status}",
            remedy="grant the user both permissions, or correct registry.image or registry.user; "
            + CREATE_REPOSITORY_HINT,
        )

    def _connection_error(self, error: Exception, server: str) -> VmAgentError:
        """Convert an error without a readable response: transient, unless it is the certificate."""
        cause = getattr(error, "reason", None) or error
        text = str(cause) if isinstance(cause, OSError) else f"{type(error).__name__}: {cause}"
        if isinstance(cause, ssl.SSLCertVerificationError):
            trusted = CERTIFICATES_FOLDER / self.host / "ca.crt"
            return VmAgentError(
                "usage",
                f"{server}: its certificate is not valid: {cause.verify_message}",
                remedy="correct the host's name, the certificate or the VM's clock, or put its authority's certificate "
                f"into {trusted} there, where the engine reads it, too",
            )
        return VmAgentError("transient", f"{server}: {text}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that follows none, so that a redirect is an HTTPError."""

    def redirect_request(self, *_: Any) -> None:
        """Leave the response to the handler of errors."""


def _is_bearer(challenge: str) -> bool:
    return challenge.lower().startswith("bearer ")


def _status_line(error: urllib.error.HTTPError) -> str:
    return f"{error.code} {error.reason}"


def is_loopback_http(url: str) -> bool:
    """Return True for a plain HTTP URL of this machine: traffic to it does not leave the machine."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "http" and _LOOPBACK.match(parts.hostname or "") is not None
