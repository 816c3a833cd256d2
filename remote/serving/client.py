"""A server that speaks OpenAI's protocol, as vLLM does: which models it has, chats and completions, greedily.

It is asked over HTTP (`at`) or in its pod (`remote.serving.pod_transport`). The key goes to the server's own address and, but
for this machine, over TLS alone; this machine is not asked through a proxy, and no redirect is followed. Every answer
has a longest size and a longest time.
"""

import http.client
import json
import re
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remote.hosts.command import Secret
from remote.hosts.host import is_loopback

MOST_BYTES, MOST_SAID = 8 << 20, 500  # of an answer; of a refusal
ASK_SEC = 300.0
_PIECE = 1 << 16


class BadServer(Exception):
    """The server's address, key, or its answer cannot be used; another try will not help."""


class ServerUnavailable(Exception):
    """The server does not answer, or not now; it is worth another try."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """An answer: its text, and whether the model ended it."""

    text: str
    has_ended: bool


@dataclass(frozen=True, kw_only=True)
class ChatReply:
    """What came over HTTP; of `content` at most one byte more than MOST_BYTES."""

    status: int
    reason: str
    content: bytes


def connect(url: str, key: Secret | None) -> "ServerClient":
    """The server at `url`, e.g. http://127.0.0.1:8000. Raises ServerWrong."""
    parts = _parts(url)
    is_here = is_loopback(parts.hostname)
    if key is not None and parts.scheme == "http" and not is_here:
        raise BadServer(
            f"{url}: the key would travel over plain HTTP; use https, or `kubectl port-forward` and 127.0.0.1"
        )
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key.reveal()}"
    opener = urllib.request.build_opener(NoErrorProcessor(), *([urllib.request.ProxyHandler({})] if is_here else []))

    def fetch(path: str, data: bytes | None) -> ChatReply:
        request = urllib.request.Request(f"{base}{path}", data=data, headers=headers)  # noqa: S310 - http(s), checked
        until, content = time.monotonic() + ASK_SEC, bytearray()
        try:
            with opener.open(request, timeout=ASK_SEC) as answer:
                while len(content) <= MOST_BYTES and (piece := answer.read1(_PIECE)):
                    content += piece
                    if time.monotonic() > until:
                        raise TimeoutError(f"no whole answer within {ASK_SEC:.0f} s")
                if answer.length and len(content) <= MOST_BYTES:  # `length` is what has not come
                    raise ConnectionResetError(f"the answer ended {answer.length} bytes early")
                return ChatReply(status=answer.status, reason=answer.reason, content=bytes(content))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _no_answer(f"{base}{path}", error) from None

    return ServerClient(base, fetch)


def _parts(url: str) -> urllib.parse.SplitResult:
    """An address, taken apart. Raises ServerWrong."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_one = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0  # it raises for no number
    except ValueError:
        is_one = False
    if not is_one or "@" in parts.netloc or parts.query or parts.fragment or not re.fullmatch(r"[!-~]+", url):
        raise BadServer(f"{url!r}: expected an address like http://127.0.0.1:8000")
    return parts


def _no_answer(url: str, error: Exception) -> BadServer | ServerUnavailable:
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return ServerUnavailable(f"{url}: no answer over HTTP: {error!r}")
    why = getattr(error, "reason", None) or error
    if isinstance(why, ssl.SSLCertVerificationError):
        trust = "name the file of an authority of your own in the variable SSL_CERT_FILE"
        return BadServer(f"{url}: its certificate is not trusted: {why.verify_message}; {trust}")
    return ServerUnavailable(f"{url}: {why}")


class ServerClient:
    """A server, asked through `fetch` (path, body or None). All methods raise ServerWrong and ServerAway."""

    def __init__(self, url: str, fetch: Callable[[str, bytes | None], ChatReply]) -> None:
        self.url, self._fetch = url, fetch

    def models(self) -> list[str]:
        """The names of the models that it serves."""
        data = self._ask("models").get("data")
        names = [one.get("id") for one in data if isinstance(one, dict)] if isinstance(data, list) else []
        if not names or not all(isinstance(name, str) for name in names):
            raise BadServer(f"{self.url}/v1/models: names no model; is it a server of OpenAI's protocol?")
        return [str(name) for name in names]

    def chat(self, model: str, messages: Sequence[Mapping[str, str]], most_tokens: int) -> Said:
        """Its greedy answer to a conversation, in the server's own chat template."""
        asked = {"model": model, "messages": list(messages), "max_tokens": most_tokens, "temperature": 0.0}
        return self._said("chat/completions", asked, lambda one: one["message"]["content"])

    def complete(self, model: str, prompt: str, most_tokens: int) -> Said:
        """What it writes after a text that holds its special tokens already."""
        asked = {"model": model, "prompt": prompt, "max_tokens": most_tokens, "temperature": 0.0}
        return self._said("completions", asked | {"add_special_tokens": False}, lambda one: one["text"])

    def _said(self, what: str, asked: Mapping[str, Any], text_of: Any) -> Said:
        found = self._ask(what, asked)
        try:
            (one,) = found["choices"]
            text, reason = text_of(one), one["finish_reason"]
            if not isinstance(text, str) or reason not in ("stop", "length"):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise BadServer(f"{self.url}/v1/{what}: answers something else than one choice with its text") from None
        return Said(text=text.strip(), has_ended=reason == "stop")

    def _ask(self, what: str, document: Mapping[str, Any] | None = None) -> dict[str, Any]:
        url = f"{self.url}/v1/{what}"
        answer = self._fetch(f"/v1/{what}", None if document is None else json.dumps(document).encode())
        if not 200 <= answer.status < 300:
            words = " ".join(answer.content[:MOST_SAID].decode(errors="replace").split())[:200]
            kind = ServerUnavailable if answer.status in (429, 500, 502, 503, 504) else BadServer
            more = "; name its key's file with --key-file" if answer.status in (401, 403) else ""
            raise kind(f"{url}: {answer.status} {answer.reason}: {words}{more}")
        if len(answer.content) > MOST_BYTES:
            raise BadServer(f"{url}: answers with more than {MOST_BYTES >> 20} MiB; given up")
        try:
            found = json.loads(answer.content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise BadServer(f"{url}: answers with something else than a JSON object")
        return found


class NoErrorProcessor(urllib.request.HTTPErrorProcessor):
    """Every answer with its status. A redirect is one, too: the key and the prompts go nowhere else."""

    def http_response(self, _request: Any, response: Any) -> Any:
        return response

    https_response = http_response  # type: ignore[assignment]
