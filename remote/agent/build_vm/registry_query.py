"""Command on the build VM for one request to a registry. The login comes on standard input and stays in this process.

    python .../__main__.py ask < {"host": ..., "path": ..., "login": BASE64, "token_hosts": [...], "tag": ...}

The field `do` selects the operation. Without it: resolve the tag and check that the login may push, without changes.
`look`: read an image with its documents and signatures. `attach`, `sign`: add a document or a signature. The reply is
one JSON line.
"""

import json
import sys
from typing import Any

from remote.agent.shared.errors import VmAgentError, with_retries
from remote.agent.shared.registry import referrers
from remote.agent.shared.registry.api import Registry

FIRST_WAIT_SEC = 1.0


def main() -> int:
    sys.stdout.write(json.dumps(handle_request(json.load(sys.stdin))) + "\n")
    return 0


def handle_request(request: dict[str, Any]) -> dict[str, Any]:
    """Process a request, or return the failure as JSON. Retries transient failures if `do` is set."""
    try:
        return with_retries(lambda: _handle_once(request), FIRST_WAIT_SEC) if "do" in request else _handle_once(request)
    except VmAgentError as failed:
        return dict(failed.to_json())


def _handle_once(request: dict[str, Any]) -> dict[str, Any]:
    registry = Registry(request["host"], request["path"], request["login"], request["token_hosts"])
    operation = request.get("do")
    if operation == "look":
        return referrers.describe_image(registry, request["name"])
    if operation == "attach":
        return referrers.attach(registry, request["subject"], request["documents"])
    if operation == "sign":
        return referrers.sign(registry, request["subject"], request["payload"], request["signature"])
    tagged = registry.manifest(request["tag"])
    registry.check_push_access()
    return {"digest": None if tagged is None else tagged[0]}
