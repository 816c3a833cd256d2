"""Fake kubectl for tests of PodHost: `get pods` and `exec`, where the pod is this machine.

FAKE_KUBECTL_FOLDER holds pods.txt (the output of `get pods`; absent: the server is unreachable), calls.log (a line per
call) and fault.json: {"fault": NAME, "after": BYTES} for the next `times` exec calls. Faults: cut (standard output ends
after so many bytes with exit 0, as when a kubelet dies), freeze (no more output after them), flip (one bit is flipped
there), skip (ten bytes are lost there), linger (does not exit after the command's end), error (no output, exit 1 with
`stderr` on standard error).

Not covered: the rest of kubectl and the API server; tests/system/cluster uses the real program.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path


def main(arguments: list[str]) -> int:
    folder = Path(os.environ["FAKE_KUBECTL_FOLDER"])
    verb = next(argument for argument in arguments if not argument.startswith("-"))
    with (folder / "calls.log").open("a") as log:
        log.write(f"{verb}\n")
    if verb == "get":
        pods = folder / "pods.txt"
        if not pods.exists():
            sys.stderr.write("Unable to connect to the server: dial tcp: connection refused\n")
            return 1
        sys.stdout.write(pods.read_text())
        return 0
    return execute(arguments[arguments.index("--") + 1 :], take_fault(folder / "fault.json"))


def take_fault(path: Path) -> dict[str, object]:
    if not path.exists():
        return {}
    fault = json.loads(path.read_text())
    if fault["times"] <= 1:
        path.unlink()
    else:
        path.write_text(json.dumps({**fault, "times": fault["times"] - 1}))
    return dict(fault)


def execute(argv: list[str], fault: dict[str, object]) -> int:
    kind, left = fault.get("fault"), int(str(fault.get("after", 0)))
    sys.stderr.write("E0101 Unknown stream id 1, discarding message\n")
    if kind == "error":
        sys.stderr.write(f"{fault['stderr']}\n")
        return 1
    # In a new session, because signals to kubectl's process group do not reach a pod.
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )

    def feed() -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            while chunk := os.read(0, 1 << 15):
                process.stdin.write(chunk)
                process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()

    threading.Thread(target=feed, daemon=True).start()
    assert process.stdout is not None
    while chunk := os.read(process.stdout.fileno(), 1 << 15):
        if kind in ("cut", "freeze", "flip", "skip") and len(chunk) > left:
            if kind == "flip":
                chunk = chunk[:left] + bytes([chunk[left] ^ 1]) + chunk[left + 1 :]
                kind = None
            elif kind == "skip":
                chunk, kind = chunk[:left] + chunk[left + 10 :], None
            else:
                os.write(1, chunk[:left])
                if kind == "freeze":
                    time.sleep(60)
                os._exit(0)
        left -= len(chunk)
        while chunk:
            chunk = chunk[os.write(1, chunk) :]
    if kind == "linger":
        time.sleep(60)
    os._exit(process.wait() & 0x7F)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
