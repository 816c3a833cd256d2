"""On the build VM: one question about a registry. The login comes on standard input and stays in this process.

    python .../__main__.py ask < {"host": ..., "path": ..., "login": BASE64, "token_hosts": [...], "tag": ...}

`do` in the question says what is asked: nothing, what the tag is and whether the login may push (changes nothing);
`look`, all that stands beside an image; `attach` and `sign`, to put something there. Answers in one JSON line.
"""

import json
import sys
from typing import Any

from remote.image.vm_agent.job import Failed, with_retries
from remote.image.vm_agent.registry import referrers
from remote.image.vm_agent.registry.api import Registry

FIRST_WAIT_SEC = 1.0


def main() -> int:
    sys.stdout.write(json.dumps(ask(json.load(sys.stdin))) + "\n")
    return 0


def ask(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer; or `kind` and `message` of what failed. What may pass is tried again, save where only asked."""
    try:
        return with_retries(lambda: _answer(asked), FIRST_WAIT_SEC) if "do" in asked else _answer(asked)
    except Failed as failed:
        return {"kind": failed.kind, "message": str(failed)}


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    registry = Registry(asked["host"], asked["path"], asked["login"], asked["token_hosts"])
    do = asked.get("do")
    if do == "look":
        return referrers.look(registry, asked["name"])
    if do == "attach":
        return referrers.attach(registry, asked["subject"], asked["documents"])
    if do == "sign":
        return referrers.sign(registry, asked["subject"], asked["payload"], asked["signature"])
    there = registry.manifest(asked["tag"])
    registry.check_may_push()
    return {"digest": None if there is None else there[0]}
