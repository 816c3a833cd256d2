"""On the build VM: asks a registry what a tag is there and whether the login may push; changes nothing.

    python .../__main__.py ask < {"host": ..., "path": ..., "tag": ..., "login": BASE64, "token_hosts": [...]}

The login comes on standard input and stays in this process. Answers in one JSON line.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from remote.image.onvm.job import Failed
from remote.image.onvm.registry import Registry


def main() -> int:
    sys.stdout.write(json.dumps(ask(json.load(sys.stdin))) + "\n")
    return 0


def ask(asked: dict[str, Any]) -> dict[str, Any]:
    """`digest` of the tag (null where there is none), or `kind` and `message` of what failed."""
    registry = Registry(asked["host"], asked["path"], asked["login"], asked["token_hosts"])
    try:
        there = registry.manifest(asked["tag"])
        registry.check_may_push()
    except Failed as failed:
        return {"kind": failed.kind, "message": str(failed)}
    return {"digest": None if there is None else there[0]}
