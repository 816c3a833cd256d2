"""Client of a server with OpenAI's protocol, such as vLLM: lists models, requests greedy chats and completions.

The key goes only to the server's own address, and only over TLS except on this machine. Requests to this machine bypass
proxies; redirects are not followed. Every response is limited in size and time.
"""

import http.client
import json
import re
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.records import schema
from bench.records.status import Failure
from bench.records.units import format_mib
from remote.agent.shared.responses import read_response
from remote.hosts.command import Secret
from remote.hosts.host_protocol import is_loopback

MAX_RESPONSE_BYTES, MAX_ERROR_BYTES = 8 << 20, 500
REQUEST_TIMEOUT_SEC = 300.0


class BadServer(Failure):
    """Unusable address, key or response of the server; a retry does not help."""


class ServerUnavailable(Exception):
    """Server that does not answer or is overloaded; worth a retry."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Generated text. `has_ended`: the model ended it, not the token limit."""

    text: str
    has_ended: bool


def _parse_url(url: str) -> urllib.parse.SplitResult:
    """Parse and check a URL. Raises BadServer."""
    try:
        parts = urllib.parse.urlsplit(url)
        # `port` raises for an invalid number.
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or "@" in parts.netloc or parts.query or parts.fragment or not re.fullmatch(r"[!-~]+", url):
        raise BadServer(f"{url!r}: expected a URL like http://127.0.0.1:8000")
    return parts


def _connection_error(url: str, error: Exception) -> BadServer | ServerUnavailable:
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return ServerUnavailable(f"{url}: no HTTP response: {error!r}")
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, ssl.SSLCertVerificationError):
        trust = "to trust your own authority, set SSL_CERT_FILE to its file"
        return BadServer(f"{url}: its certificate is not trusted: {reason.verify_message}", remedy=trust)
    return ServerUnavailable(f"{url}: {reason}")


class ServerClient:
    """A server, e.g. at http://127.0.0.1:8000. Requests raise BadServer and ServerUnavailable."""

    def __init__(self, url: str, key: Secret | None) -> None:
        """Raises BadServer for an address that cannot be used."""
        parts = _parse_url(url)
        is_local = is_loopback(parts.hostname)
        if key is not None and parts.scheme == "http" and not is_local:
            raise BadServer(
                f"{url}: the key would travel over plain HTTP",
                remedy="use https, or `kubectl port-forward` and 127.0.0.1",
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key.reveal()}"
        proxies = [urllib.request.ProxyHandler({})] if is_local else []
        self._opener = urllib.request.build_opener(_NoErrorProcessor(), *proxies)

    def models(self) -> list[str]:
        """List the names of the served models."""
        data = self._request("models").get("data")
        names = [entry.get("id") for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
        if not names or not all(isinstance(name, str) for name in names):
            raise BadServer(
                f"{self.url}/v1/models: lists no model", remedy="check that this is a server with OpenAI's protocol"
            )
        return [str(name) for name in names]

    def chat(self, model: str, messages: Sequence[Mapping[str, str]], max_tokens: int) -> Completion:
        """Request the greedy reply to a conversation, in the server's chat template."""
        body = {"model": model, "messages": list(messages), "max_tokens": max_tokens, "temperature": 0.0}
        return self._request_completion("chat/completions", body, lambda choice: choice["message"]["content"])

    def complete(self, model: str, prompt: str, max_tokens: int) -> Completion:
        """Request the greedy continuation of a text that has its special tokens already."""
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0}
        return self._request_completion(
            "completions", body | {"add_special_tokens": False}, lambda choice: choice["text"]
        )

    def _request_completion(self, endpoint: str, body: Mapping[str, Any], get_text: Any) -> Completion:
        document = self._request(endpoint, body)
        try:
            (choice,) = document["choices"]
            text, reason = get_text(choice), choice["finish_reason"]
            if not isinstance(text, str) or reason not in ("stop", "length"):
                raise ValueError
        except (KeyError, TypeError, ValueError) as error:
            raise BadServer(f"{self.url}/v1/{endpoint}: the response does not have one choice with its text") from error
        return Completion(text=text.strip(), has_ended=reason == "stop")

    def _request(self, endpoint: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        url, data = f"{self.url}/v1/{endpoint}", None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers=self._headers)  # noqa: S310 - http(s), checked
        try:
            with self._opener.open(request, timeout=REQUEST_TIMEOUT_SEC) as response:
                content = read_response(response, max_bytes=MAX_RESPONSE_BYTES, timeout_sec=REQUEST_TIMEOUT_SEC)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _connection_error(url, error) from error
        if not 200 <= response.status < 300:
            text = " ".join(content[:MAX_ERROR_BYTES].decode(errors="replace").split())[:200]
            kind = ServerUnavailable if response.status in (429, 500, 502, 503, 504) else BadServer
            remedy = "; pass its key file with --key-file" if response.status in (401, 403) else ""
            raise kind(f"{url}: {response.status} {response.reason}: {text}{remedy}")
        if len(content) > MAX_RESPONSE_BYTES:
            raise BadServer(f"{url}: the response exceeds {format_mib(MAX_RESPONSE_BYTES)}")
        try:
            return schema.parse_object(content)
        except ValueError as error:
            raise BadServer(f"{url}: the response is not a JSON object") from error


class _NoErrorProcessor(urllib.request.HTTPErrorProcessor):
    """Handler that returns every response with its status and follows no redirect with the key and the prompts."""

    def http_response(self, _request: Any, response: Any) -> Any:
        return response

    https_response = http_response  # type: ignore[assignment]
