"""A client of an engine with prepared answers, for tests that need no engine.

    docker = fake_engine(tmp_path, {"GET /images/x/json": {"Id": "sha256:x"}}, load="cat > /dev/null")

The answer to a request is the first one whose key begins the request's line, without the API's version: a JSON value,
{"lines": [...]}, or a number, the status of an error. Other requests are answered by 404.
"""

import json
import sys
from pathlib import Path
from typing import Any

VERSION = {"Version": "28.2.2", "ApiVersion": "1.50", "Components": [{"Name": "Engine", "Version": "28.2.2"}]}

_DIAL = """
import json, re, sys, time
head = b""
while not head.endswith(b"\\r\\n\\r\\n"):
    head += sys.stdin.buffer.read(1)
line = re.sub(r"/v1[.]\\d+/", "/", head.decode().split("\\r\\n")[0])
with open(sys.argv[1] + ".requests", "a") as requests:
    requests.write(head.decode())
answers = json.load(open(sys.argv[1]))
answer = next((answer for start, answer in answers.items() if line.startswith(start)), 404)
status, answer = (answer, {"message": f"answer {answer}"}) if isinstance(answer, int) else (200, answer)
write = lambda text: (sys.stdout.write(text), sys.stdout.flush())
write(f"HTTP/1.0 {status} x\\r\\nContent-Type: application/json\\r\\n\\r\\n")
for line in answer["lines"] if "lines" in answer else [answer]:
    time.sleep(line.pop("sleep", 0) if isinstance(line, dict) else 0)
    write(json.dumps(line) + "\\n")
"""


def fake_engine(folder: Path, answers: dict[str, Any] | None = None, *, complaint: str = "", **commands: str) -> str:
    """Create the client and return its path. `commands` are shell scripts for its other commands.

    With a `complaint` it reaches no engine.
    """
    path = folder / "docker"
    path.with_suffix(".py").write_text(_DIAL)
    path.with_suffix(".json").write_text(json.dumps({"GET /version": VERSION, **(answers or {})}))
    dial = f"exec {sys.executable} -I -S '{folder}/docker.py' '{folder}/docker.json'"
    if complaint:
        path.with_suffix(".txt").write_text(complaint + "\n")
        dial = f"cat '{folder}/docker.txt' >&2; exit 1"
    cases = "".join(f"{name}) {script};;\n" for name, script in {"system": dial, **commands}.items())
    path.write_text(f"#!/bin/sh\ncase $1 in\n{cases}*) exit 1;;\nesac\n")
    path.chmod(0o755)
    return str(path)


def requests_of(docker: str) -> str:
    """Return the heads of all requests to a fake engine."""
    return Path(f"{docker}.json.requests").read_text()
