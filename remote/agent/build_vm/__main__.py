"""Entry point on the build VM: a job, or one request to a registry without a job.

    python .../remote/agent/build_vm/__main__.py job.json       in the job's folder
    python .../remote/agent/build_vm/__main__.py ask < {"host": ..., "path": ..., "login": BASE64, "token_hosts": [...],
                                                        "tag": ...}

The login comes on standard input and stays in this process. The field `do` selects the operation. Without it: resolve
the tag and check that the login may push, without changes. `look`: read an image with its documents and signatures.
`attach`, `sign`: add a document or a signature. The reply is one JSON line.
"""

import json
import sys
from typing import Any

if __name__ == "__main__":
    folder = __file__.rsplit("/", 1)[0]
    # Replace this folder with the one above `remote`: this folder's module names may collide with other modules.
    sys.path = [folder.rsplit("/", 3)[0], *(path for path in sys.path if path != folder)]

from remote.agent.build_vm import job
from remote.agent.shared import referrers
from remote.agent.shared.errors import VmAgentError, with_retries
from remote.agent.shared.registry_api import Registry

FIRST_WAIT_SEC = 1.0


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


if __name__ == "__main__":
    if sys.argv[1:] != ["ask"]:
        sys.exit(job.main())
    print(json.dumps(handle_request(json.load(sys.stdin))))
