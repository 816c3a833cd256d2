"""Entry point on the build VM: `__main__.py job.json` in the job's folder, or one request to a registry without a job.

`__main__.py ask` reads {"host", "path", "login", "token_hosts", "tag"} as JSON on standard input; the login stays in
this process. It resolves the tag, checks without changes whether the login may push, and replies in one JSON line.
"""

import json
import sys
from typing import Any

if __name__ == "__main__":
    folder = __file__.rsplit("/", 1)[0]
    # Replace this folder with the one above `remote`: this folder's module names may collide with other modules.
    sys.path = [folder.rsplit("/", 3)[0], *(path for path in sys.path if path != folder)]

from remote.agent.build_vm import job
from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.registry_api import Registry


def handle_request(request: dict[str, Any]) -> dict[str, Any]:
    """Process a request, or return the failure as JSON."""
    try:
        registry = Registry(request["host"], request["path"], request["login"], request["token_hosts"])
        tagged = registry.manifest(request["tag"])
        registry.check_push_access()
    except VmAgentError as failed:
        return dict(failed.to_json())
    return {"digest": None if tagged is None else tagged[0]}


if __name__ == "__main__":
    if sys.argv[1:] != ["ask"]:
        sys.exit(job.main())
    print(json.dumps(handle_request(json.load(sys.stdin))))
