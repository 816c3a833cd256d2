"""A POST of a notification to the operator's webhook. Standard library only.

Only https; the certificate is verified. The addresses of the host are checked when it connects, and the connection
goes to a checked address, so that a changed DNS answer cannot lead it into a private network. Proxies are not used.
A receiver verifies the signature like GitHub's or Stripe's webhooks: HMAC-SHA256 over "TIMESTAMP.BODY".
"""

import datetime
import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import SplitResult, urljoin, urlsplit

from bench.records.run import NotifyTarget

TIMESTAMP_HEADER, SIGNATURE_HEADER = "X-Qlora-Fleet-Timestamp", "X-Qlora-Fleet-Signature"
TIMEOUT_SEC = 10.0  # each operation on a connection
REQUEST_TIMEOUT_SEC = 30.0  # one request in all: a response may have no end, byte by byte
MAX_URL_CHARS = 2000
MAX_REDIRECTS = 3
_RETRIED_STATUSES = {408, 429}  # and those from 500
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class WebhookError(Exception):
    """A notification that was not accepted. `is_transient`: a retry may help."""

    def __init__(self, problem: str, *, is_transient: bool = False) -> None:
        super().__init__(problem)
        self.is_transient = is_transient


@dataclass(frozen=True, kw_only=True)
class _Endpoint:
    """Checked parts of a URL."""

    host: str
    port: int
    path: str


def check_url(url: str) -> None:
    """Check an address of the settings. Raises WebhookError."""
    parts = _split(url)
    if parts.username is not None or parts.password is not None or parts.query:
        raise WebhookError("has a login or a query, and settings are recorded with each run: use notify.key_file")
    _endpoint(url)


def post(target: NotifyTarget, body: bytes, key: bytes | None = None, *, now: float | None = None) -> None:
    """Send `body`, signed with `key`. Raises WebhookError, for a retry as well as for good."""
    sent_at = datetime.datetime.now(datetime.timezone.utc).timestamp() if now is None else now
    url, timestamp = target.url, str(int(sent_at))
    headers = {"Content-Type": "application/json", "User-Agent": "qlora-fleet"}
    if key is not None:
        digest = hmac.new(key, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
        headers |= {TIMESTAMP_HEADER: timestamp, SIGNATURE_HEADER: f"sha256={digest}"}
    for _ in range(MAX_REDIRECTS + 1):
        status, location = _request(_endpoint(url), body, headers, allow_private=target.allow_private)
        if 200 <= status < 300:
            return
        if not 300 <= status < 400:
            is_transient = status in _RETRIED_STATUSES or status >= 500
            raise WebhookError(f"status {status}", is_transient=is_transient)
        if not target.allow_redirects:
            raise WebhookError(f"redirects (status {status}), which notify.allow_redirects does not allow")
        if status not in (307, 308) or location is None:
            raise WebhookError(f"redirects with status {status}, which does not repeat a POST")
        url = urljoin(url, location)
    raise WebhookError(f"more than {MAX_REDIRECTS} redirects")


def _split(url: str) -> SplitResult:
    if len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or " " in url:
        raise WebhookError(f"expected an https address of at most {MAX_URL_CHARS} printable ASCII characters")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise WebhookError(f"not an address: {error}") from error
    return parts


def _endpoint(url: str) -> _Endpoint:
    parts = _split(url)
    if parts.scheme != "https" or not parts.hostname:
        raise WebhookError("expected an address like https://HOST/PATH; plain HTTP is refused")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Endpoint(host=parts.hostname, port=parts.port or 443, path=path)


def _request(
    endpoint: _Endpoint, body: bytes, headers: dict[str, str], *, allow_private: bool
) -> tuple[int, str | None]:
    """Return the response's status and its Location; the rest of the response is not read."""
    connection = _CheckedConnection(endpoint, allow_private=allow_private)
    try:
        connection.request("POST", endpoint.path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.getheader("location")
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        is_transient = not isinstance(error, ssl.SSLCertVerificationError)
        raise WebhookError(f"{endpoint.host}: {reason}", is_transient=is_transient) from error
    finally:
        connection.close()


class _LimitedSocket(ssl.SSLSocket):
    """Socket of one request. Reading raises TimeoutError after `deadline`, in monotonic time."""

    deadline = float("inf")

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        self.settimeout(_time_left(self.deadline))
        return super().recv_into(*arguments, **options)


def _time_left(deadline: float) -> float:
    """Return the timeout of the next operation. Raises TimeoutError."""
    if (left_sec := deadline - time.monotonic()) <= 0:
        raise TimeoutError(f"no complete response within {REQUEST_TIMEOUT_SEC:g} s")
    return min(left_sec, TIMEOUT_SEC)


class _CheckedConnection(http.client.HTTPSConnection):
    """Connection to an address that was checked after the name was resolved."""

    def __init__(self, endpoint: _Endpoint, *, allow_private: bool) -> None:
        self._tls = ssl.create_default_context()
        self._tls.sslsocket_class = _LimitedSocket
        self._deadline = time.monotonic() + REQUEST_TIMEOUT_SEC
        super().__init__(endpoint.host, endpoint.port, timeout=TIMEOUT_SEC, context=self._tls)
        self._allow_private = allow_private

    def connect(self) -> None:
        entries = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        for address in addresses:  # one refused address refuses the name
            if not is_allowed(address, allow_private=self._allow_private):
                raise WebhookError(f"{self.host} is {address}, a private address; see notify.allow_private")
        error: OSError | None = None
        for address in addresses:
            try:
                plain = socket.create_connection((address, self.port), _time_left(self._deadline))
            except OSError as failure:
                error = failure
                continue
            try:
                self.sock = limited = cast(_LimitedSocket, self._tls.wrap_socket(plain, server_hostname=self.host))
                limited.deadline = self._deadline
            except BaseException:
                plain.close()
                raise
            return
        raise error or OSError("the name has no address")


def is_allowed(text: str, *, allow_private: bool) -> bool:
    """Return whether a notification may go to this address. Link-local ones, with clouds' metadata, never may."""
    address = _reached(ipaddress.ip_address(text.partition("%")[0]))
    is_special = address.is_link_local or address.is_multicast or address.is_unspecified
    if is_special or (address.is_reserved and not address.is_loopback):
        return False
    if isinstance(address, ipaddress.IPv6Address) and (address.sixtofour or address.teredo):  # tunnels to anywhere
        return False
    return address.is_global or allow_private


def _reached(address: Address) -> Address:
    """Return the IPv4 address to which the network translates an IPv6 address; other addresses unchanged."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address
