"""Program in a server's pod that sends one HTTP request to the server. Address and key are in its environment.

    python -c THIS PORT PATH TIMEOUT_SEC MAX_BYTES MAX_ERROR_BYTES      the request's body is on standard input

Prints a JSON line {"status", "reason"} and the response's body, or the line {"away": CAUSE}.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that returns a redirect as an error: the key goes to no other address."""

    def redirect_request(self, *_: object) -> None:
        return None


def main() -> None:
    port, path, timeout_sec, max_bytes, max_error_bytes = sys.argv[1:]
    address = os.environ["POD_IP"]
    request = urllib.request.Request(
        f"http://{f'[{address}]' if ':' in address else address}:{port}{path}",
        data=sys.stdin.buffer.read() or None,
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['VLLM_API_KEY']}"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirects())
    content = b""
    try:
        try:
            with opener.open(request, timeout=float(timeout_sec)) as response:
                head, content = {"status": response.status, "reason": response.reason}, response.read(int(max_bytes))
        except urllib.error.HTTPError as error:
            head, content = {"status": error.code, "reason": error.reason}, error.read(int(max_error_bytes))
    except (OSError, ValueError) as error:
        head = {"away": str(getattr(error, "reason", None) or error)}
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + content)


if __name__ == "__main__":
    main()
