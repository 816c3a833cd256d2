"""A server in a pod, asked by a program in that pod: its key stays there, and nothing listens outside the cluster."""

import json

from remote.hosts.command import Command
from remote.hosts.host import Host, HostError, one_line
from remote.serving.client import ASK_SEC, MOST_BYTES, MOST_SAID, ChatReply, ServerClient, ServerUnavailable

PORT = 8000  # as manifests/overlays/serve has it
_PROGRAM = f"""
import json, os, sys, urllib.error, urllib.request
class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *given):
        return None
ip, data = os.environ["POD_IP"], sys.stdin.buffer.read() or None
request = urllib.request.Request(
    "http://%s:{PORT}%s" % ("[%s]" % ip if ":" in ip else ip, sys.argv[1]), data=data,
    headers={{"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["VLLM_API_KEY"]}},
)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}), NoRedirects())
try:
    try:
        with opener.open(request, timeout={ASK_SEC}) as answer:
            found = [answer.status, answer.reason, answer.read({MOST_BYTES} + 1)]
    except urllib.error.HTTPError as error:
        found = [error.code, error.reason, error.read({MOST_SAID})]
    print(json.dumps({{"status": found[0], "reason": found[1]}}))
    sys.stdout.flush()
    sys.stdout.buffer.write(found[2])
except (OSError, ValueError) as error:
    print(json.dumps({{"away": str(getattr(error, "reason", None) or error)}}))
"""
_MORE_SEC = 30.0


def request_in_pod(host: Host) -> ServerClient:
    """The server in the pod `host`, which has its address and key in its environment."""

    def fetch(path: str, data: bytes | None) -> ChatReply:
        command = Command(argv=(*host.python, "-c", _PROGRAM, path))
        try:
            done = host.run(command, stdin=data or b"", timeout_sec=ASK_SEC + _MORE_SEC)
        except HostError as error:
            raise ServerUnavailable(one_line(error)) from None
        head, _, content = done.stdout.partition(b"\n")
        try:
            found = json.loads(head)
            if done.exit_code or "away" in found:
                raise ServerUnavailable(f"{host.name}{path}: {found.get('away')}")
            return ChatReply(status=int(found["status"]), reason=str(found["reason"]), content=content)
        except (ValueError, KeyError, TypeError, AttributeError):
            last = one_line(done.stderr.decode(errors="replace"))[-200:]
            raise ServerUnavailable(f"{host.name}{path}: its pod could not ask it: {last}") from None

    return ServerClient(host.name, fetch)
