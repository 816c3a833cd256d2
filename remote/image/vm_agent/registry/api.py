"""On the build VM: asks a registry over the distribution API (HTTP v2).

The login goes to the registry's own host and to token services that are known for it, over TLS; a redirect takes it
nowhere else. Every answer has a longest size and a longest time, because whatever listens there may send without end.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from remote.image.vm_agent.job import Failed

ASK_SEC = 60.0  # for one answer, its body included
MANIFEST_BYTES = 4 << 20  # the most that registries take (distribution-spec, "Pushing Manifests")
TOKEN_BYTES = 1 << 20
BLOB_BYTES = 16 << 20  # of what is read whole: a document, an image's configuration
PAGES = 20
REDIRECTS = 5
CERTIFICATES = Path("/etc/docker/certs.d")
MANIFEST, INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"
MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json",
    MANIFEST,
    "application/vnd.docker.distribution.manifest.list.v2+json",
    INDEX,
)
PASSING = frozenset({429, 500, 502, 503, 504})
# Registries whose token service has another host's name; registry.token_hosts names more.
TOKEN_HOSTS = {"registry-1.docker.io": "auth.docker.io", "registry.gitlab.com": "gitlab.com"}
MAKES_ONE = "where a repository is to be made first, make it (OCIR: `inv tenancy.repository`)"
_PIECE = 1 << 16
_NO_ANSWER = (OSError, ValueError, RecursionError, http.client.HTTPException)  # of a request, or of what came
_LOOPBACK = re.compile(r"(localhost|127\.[\d.]+|::1)\Z")


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def entries(value: Any) -> list[dict[str, Any]]:
    """A list's objects: whatever else a registry sends in its place is none."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def fields(value: Any) -> dict[str, Any]:
    """An object's fields; none of anything else."""
    return value if isinstance(value, dict) else {}


def size_of(part: Any) -> int | None:
    """The bytes that a manifest says a part has; None where it says no number that can be one."""
    size = fields(part).get("size")
    return size if type(size) is int and 0 <= size < 1 << 63 else None


def login_of(folder: str, host: str) -> str | None:
    """`user:password` in base64, as the client keeps it."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(Path(folder, "config.json").read_text())["auths"][host]["auth"])
    return None


class _Answer(NamedTuple):
    headers: Any
    content: bytes


class Registry:
    """One repository: what a tag or digest is there, and whether the login may push. All methods raise Failed."""

    def __init__(self, host: str, path: str, login: str | None, token_hosts: Collection[str] = ()) -> None:
        # Like the engine: plain HTTP to this machine only.
        scheme = "http" if is_here(f"http://{host}") else "https"
        self.base, self.host, self.path, self.login = f"{scheme}://{host}/v2", host, path, login
        self.token_hosts = {_name(host), TOKEN_HOSTS.get(host, _name(host)), *token_hosts}
        self.bearer: str | None = None
        tls = ssl.create_default_context()
        for certificate in CERTIFICATES.joinpath(host).glob("*.crt"):
            try:
                tls.load_verify_locations(certificate)
            except OSError as error:
                raise Failed("usage", f"{certificate}: cannot be read: {error.strerror or error}; mend it") from None
        # This machine is asked without TLS, so not through a proxy, which would read the login.
        proxies = {kind: proxy for kind, proxy in urllib.request.getproxies().items() if kind != "http"}
        handlers = (urllib.request.HTTPSHandler(context=tls), urllib.request.ProxyHandler(proxies), _Redirects(host))
        self.opener = urllib.request.build_opener(*handlers)

    @property
    def user(self) -> str:
        """Whose login it is, for messages."""
        with contextlib.suppress(ValueError):
            return base64.b64decode(self.login or "").decode().partition(":")[0] or "nobody"
        return "nobody"

    def manifest(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """Digest and content of the manifest that a tag or digest names; None where there is none."""
        content = self.manifest_bytes(name)
        return None if content is None else (digest_of(content), self._manifest(content))

    def manifest_bytes(self, name: str) -> bytes | None:
        """The same as it was sent, by its digest if `name` is one; None where there is none."""
        content = self._verified("manifests", name, {"Accept": ", ".join(MANIFESTS)})
        if content is not None:
            self._manifest(content)
        return content

    def referrers(self, digest: str) -> list[dict[str, Any]] | None:
        """What the registry says refers to a manifest, all pages; None where it has no such list (OCI 1.1)."""
        url: str | None = f"{self.base}/{self.path}/referrers/{digest}"
        found: list[dict[str, Any]] = []
        for _ in range(PAGES):
            try:
                content, url = self._page(str(url))
            except Failed as failed:
                if failed.kind == "failed":  # an older registry knows no such address, and says so in its own way
                    return None
                raise
            if content is None:
                return None
            found += entries(self._manifest(content).get("manifests"))
            if url is None:
                return found
        raise Failed("refused", f"{self.host} lists what refers to {digest} on more than {PAGES} pages; given up")

    def _page(self, url: str) -> tuple[bytes | None, str | None]:
        """A page of a list, and the address of the next one."""
        answer = self._ask(url, {"Accept": INDEX})
        if answer is None:
            return None, None
        following = re.match(r'<([^>]+)>; *rel="?next"?', answer.headers.get("Link", ""))
        if following is None:
            return answer.content, None
        url = self._address(url, following[1])
        if _origin(url) != _origin(self.base):
            raise Failed("refused", f"{self.host} continues its list at {_name_of(url)}; refused")
        return answer.content, url

    def blob(self, digest: str) -> bytes | None:
        """A small blob, verified; None where there is none."""
        return self._verified("blobs", digest, most=BLOB_BYTES)

    def _verified(
        self, kind: str, name: str, headers: dict[str, str] | None = None, most: int = MANIFEST_BYTES
    ) -> bytes | None:
        """A manifest's or blob's content, checked against its digest where `name` is one; None where there is none."""
        answer = self._ask(f"{self.base}/{self.path}/{kind}/{name}", headers, most=most)
        if answer is not None and name.startswith("sha256:") and name != digest_of(answer.content):
            raise Failed("refused", f"{self.host} answers with other bytes than {name} for {self.path}; refused")
        return None if answer is None else answer.content

    def _manifest(self, content: bytes) -> dict[str, Any]:
        try:
            manifest = json.loads(content)
            if not isinstance(manifest, dict) or "schemaVersion" not in manifest:
                raise ValueError
        except (ValueError, RecursionError):
            what = "a web page" if content.lstrip()[:1] == b"<" else f"{len(content)} bytes of something else"
            advice = "correct registry.image, or a proxy on the VM's way there"
            raise Failed(
                "usage", f"{self.host} answers with {what} instead of the manifest of {self.path}; {advice}"
            ) from None
        return manifest

    def check_may_push(self) -> None:
        """Begin an upload and drop it: a login without the right to push is named before gigabytes are tried.

        So is a registry that has no such repository and makes none by itself. What else goes wrong here is left to the
        push itself.
        """
        url = f"{self.base}/{self.path}/blobs/uploads/"
        try:
            begun = self._ask(url, method="POST")
        except Failed as failed:
            if failed.kind in ("unauthorized", "forbidden"):
                raise
            return
        if begun is None:
            raise Failed("absent", f"{self.host} has no repository {self.path}; {MAKES_ONE}")
        with contextlib.suppress(Failed):  # it expires by itself as well
            place = self._address(url, begun.headers.get("Location", url))
            if place != url and _origin(place) == _origin(self.base):
                self._ask(place, method="DELETE")

    def has_blob(self, digest: str) -> bool:
        url = f"{self.base}/{self.path}/blobs/{digest}"
        return self._ask(url, method="HEAD") is not None

    def send_blob(self, content: Path | bytes, digest: str) -> None:
        """Upload a file, or bytes, whole. The registry compares its digest before it keeps it."""
        url = f"{self.base}/{self.path}/blobs/uploads/"
        begun = self._ask(url, method="POST")
        place = None if begun is None else begun.headers.get("Location")
        if not place:
            raise Failed("failed", f"{self.host} says no place to upload to for {self.path}")
        url = self._address(url, place)
        if not (url.startswith("https://") or (self.base.startswith("http://") and is_here(url))):
            raise Failed("refused", f"{self.host} asks for the upload at {url}, which is not https; refused")
        url += f"{'&' if '?' in url else '?'}{urllib.parse.urlencode({'digest': digest})}"
        if self._ask(url, {"Content-Type": "application/octet-stream"}, method="PUT", data=content) is None:
            raise Failed("transient", f"{self.host} no longer knows an upload to {self.path}")

    def send_manifest(self, name: str, content: bytes, kind: str) -> bool:
        """Put a manifest under a tag or its digest; whether the registry itself lists it with its subject (OCI 1.1)."""
        url = f"{self.base}/{self.path}/manifests/{name}"
        answer = self._ask(url, {"Content-Type": kind}, method="PUT", data=content)
        if answer is None:
            raise Failed("absent", f"{self.host} has no repository {self.path}; {MAKES_ONE}")
        return bool(answer.headers.get("OCI-Subject"))

    def _address(self, url: str, place: str) -> str:
        """The address that an answer from `url` names."""
        try:
            url = urllib.parse.urljoin(url, place)
            _origin(url)  # where it has a port that is none
        except ValueError:
            raise Failed("refused", f"{self.host} names an address that is none: {place[:200]!r}") from None
        return url

    def _ask(
        self,
        url: str,
        headers: dict[str, str] | None = None,
        *,
        method: str = "GET",
        data: bytes | Path | None = None,
        most: int = MANIFEST_BYTES,
    ) -> _Answer | None:
        """As `_open`, with the login, which goes to this registry alone; None for 404."""
        for is_last in (False, True):
            login = f"Bearer {self.bearer}" if self.bearer else f"Basic {self.login}" if self.login else None
            try:
                more = {"Authorization": login} if login and _origin(url) == _origin(self.base) else {}
                return self._open(url, {**(headers or {}), **more}, method, data, most)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                challenge = error.headers.get("WWW-Authenticate", "")
                if error.code != 401 or is_last or not challenge.lower().startswith("bearer "):
                    raise self._refused(error) from None
                self.bearer = self._token(challenge)
            except _NO_ANSWER as error:
                raise _broken(error, self.host) from None
        raise AssertionError("unreachable")

    def _open(self, url: str, headers: dict[str, str], method: str, data: bytes | Path | None, most: int) -> _Answer:
        """The answer. `data` is sent: bytes, or a file's content."""
        content = bytearray()
        data = b"" if method == "POST" else data
        if isinstance(data, Path):
            headers = {**headers, "Content-Length": str(data.stat().st_size)}
        try:
            with contextlib.ExitStack() as stack:
                body: Any = stack.enter_context(data.open("rb")) if isinstance(data, Path) else data
                request = urllib.request.Request(url, data=body, headers=headers, method=method)  # noqa: S310 - https, or this machine
                answer = stack.enter_context(self.opener.open(request, timeout=ASK_SEC))
                until = time.monotonic() + ASK_SEC
                while piece := answer.read1(_PIECE):
                    content += piece
                    if len(content) > most:
                        raise Failed(
                            "refused", f"{_name_of(url)} answers {url} with more than {most >> 20} MiB; given up"
                        )
                    if time.monotonic() > until:
                        raise TimeoutError(f"an answer that is not complete after {ASK_SEC:.0f} s")
                if getattr(answer, "length", None):  # read1 takes the end of a cut answer for the end of the answer
                    raise ConnectionResetError(f"the answer ended {answer.length} bytes early")
        except urllib.error.HTTPError as error:
            error.close()  # it holds the connection
            raise
        return _Answer(answer.headers, bytes(content))

    def _token(self, challenge: str) -> str:
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        scope = f"repository:{self.path}:pull,push"
        query = urllib.parse.urlencode({"service": fields.get("service", ""), "scope": scope})
        headers = {"Authorization": f"Basic {self.login}"} if self.login else {}
        realm = fields.get("realm", "")
        try:
            self._check_realm(realm)
            answer = json.loads(self._open(f"{realm}?{query}", headers, "GET", None, TOKEN_BYTES).content)
            token = answer.get("token") or answer["access_token"]
        except urllib.error.HTTPError as error:
            if error.code in PASSING:
                raise self._refused(error) from None
            raise Failed("unauthorized", f"{self.host} refuses user {self.user}: {_said(error)} to the login") from None
        except (*_NO_ANSWER, KeyError, AttributeError) as error:
            raise _broken(error, f"{realm}, which {self.host} names") from None
        if not (isinstance(token, str) and token.isascii() and token.isprintable()):  # else it stands in the error
            raise Failed("refused", f"{realm}, which {self.host} names, gives something else than a token; refused")
        return token

    def _check_realm(self, realm: str) -> None:
        if not (realm.startswith("https://") or (self.base.startswith("http://") and is_here(realm))):
            raise Failed("refused", f"{self.host} sends the login to {realm or 'nowhere'}, which is not https; refused")
        if _name_of(realm) not in self.token_hosts:
            raise Failed(
                "refused",
                f"{self.host} sends the login of {self.user} to {_name_of(realm)}; if that is its token service, add "
                "that name to registry.token_hosts",
            )

    def _refused(self, error: urllib.error.HTTPError) -> Failed:
        if error.code == 401:
            return Failed("unauthorized", f"{self.host} refuses user {self.user} for {self.path}: {_said(error)}")
        if error.code == 403:
            return Failed("forbidden", may_not(self.host, self.user, self.path, _said(error)))
        kind = "transient" if error.code in PASSING else "failed"
        return Failed(kind, f"{self.host} answers {_said(error)} for {self.path}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect with the login only where it stays with the same server, and never from TLS to plain HTTP."""

    max_redirections = REDIRECTS

    def __init__(self, host: str) -> None:
        self._host = host

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not (newurl.startswith("https://") or (req.type == "http" and is_here(newurl))):
            fp.close()
            raise Failed("refused", f"{self._host} redirects to {newurl}, which is not https; refused")
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and _origin(newurl) != _origin(req.full_url):
            made.remove_header("Authorization")
        return made


def may_not(host: str, user: str, path: str, said: str) -> str:
    """The message for a login that is right and may not push."""
    return (
        f"{host}: user {user} may not push to {path}: {said}; give that user the right to push there, or correct "
        f"registry.image or registry.user; {MAKES_ONE}"
    )


def _said(error: urllib.error.HTTPError) -> str:
    return f"{error.code} {error.reason}"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _name_of(url: str) -> str:
    return urllib.parse.urlsplit(url).hostname or url


def _name(host: str) -> str:
    """A registry's host without its port."""
    return _name_of(f"//{host}")


def is_here(url: str) -> bool:
    """Whether an address of plain HTTP is this machine's own: what is sent there is seen by no other."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "http" and _LOOPBACK.match(parts.hostname or "") is not None


def _broken(error: Exception, where: str) -> Failed:
    """A request without a readable answer: transient, unless the certificate is not trusted."""
    why = getattr(error, "reason", None) or error
    kind = "failed" if isinstance(why, ssl.SSLCertVerificationError) else "transient"
    return Failed(kind, f"{where}: {why if isinstance(why, OSError) else f'{type(error).__name__}: {why}'}")
