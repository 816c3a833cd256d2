"""Requests to a server from a program in its pod: the key stays there, and no port is opened."""

import json

from remote.hosts.base import Host, HostError, collapse_whitespace
from remote.hosts.command import Command
from remote.serving.client import (
    MAX_ERROR_BYTES,
    MAX_RESPONSE_BYTES,
    REQUEST_TIMEOUT_SEC,
    ServerClient,
    ServerResponse,
    ServerUnavailable,
)

PORT = 8000  # as in manifests/overlays/serve
_PROGRAM = f"""
import json, os, sys, urllib.error, urllib.request
class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None
ip, data = os.environ["POD_IP"], sys.stdin.buffer.read() or None
request = urllib.request.Request(
    "http://%s:{PORT}%s" % ("[%s]" % ip if ":" in ip else ip, sys.argv[1]), data=data,
    headers={{"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["VLLM_API_KEY"]}},
)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}), NoRedirects())
try:
    try:
        with opener.open(request, timeout={REQUEST_TIMEOUT_SEC}) as answer:
            parts = [answer.status, answer.reason, answer.read({MAX_RESPONSE_BYTES} + 1)]
    except urllib.error.HTTPError as error:
        parts = [error.code, error.reason, error.read({MAX_ERROR_BYTES})]
    print(json.dumps({{"status": parts[0], "reason": parts[1]}}))
    sys.stdout.flush()
    sys.stdout.buffer.write(parts[2])
except (OSError, ValueError) as error:
    print(json.dumps({{"away": str(getattr(error, "reason", None) or error)}}))
"""
_EXEC_MARGIN_SEC = 30.0


def connect_in_pod(host: Host) -> ServerClient:
    """Make a client of the server in the pod `host`, whose environment has its address and key."""

    def fetch(path: str, data: bytes | None) -> ServerResponse:
        command = Command(argv=(*host.python, "-c", _PROGRAM, path))
        try:
            completed = host.run(command, stdin=data or b"", timeout_sec=REQUEST_TIMEOUT_SEC + _EXEC_MARGIN_SEC)
        except HostError as error:
            raise ServerUnavailable(collapse_whitespace(error)) from error
        head, _, content = completed.stdout.partition(b"\n")
        try:
            header = json.loads(head)
            if completed.exit_code or "away" in header:
                raise ServerUnavailable(f"{host.name}{path}: {header.get('away')}")
            return ServerResponse(status=int(header["status"]), reason=str(header["reason"]), content=content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            last = collapse_whitespace(completed.stderr.decode(errors="replace"))[-200:]
            raise ServerUnavailable(f"{host.name}{path}: the request in its pod failed: {last}") from error

    return ServerClient(host.name, fetch)
