"""Stands in for kubectl in unit tests of PodHost: `get pods` and `exec`, the pod being this machine.

STAND_IN_FOLDER holds pods.txt (the answer to `get pods`; absent: no answer), calls.log (a line per call) and
fault.json: {"fault": NAME, "after": BYTES} for the coming exec calls, as far as `times` goes. Faults: cut (standard
output ends after so many bytes, exit 0, as when a kubelet dies), freeze (nothing more comes after them), flip (one bit
there), skip (ten bytes are lost there), linger (does not leave after the command's end), deaf (says nothing, exit 1
with `words` on standard error).

Not covered: everything that is kubectl's and the API server's; tests/cluster has that, with the real program.
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
    folder = Path(os.environ["STAND_IN_FOLDER"])
    verb = next(word for word in arguments if not word.startswith("-"))
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
    if kind == "deaf":
        sys.stderr.write(f"{fault['words']}\n")
        return 1
    # A session of its own: what ends kubectl's process group does not reach into a pod.
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )

    def feed() -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            while piece := os.read(0, 1 << 15):
                process.stdin.write(piece)
                process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()

    threading.Thread(target=feed, daemon=True).start()
    assert process.stdout is not None
    while piece := os.read(process.stdout.fileno(), 1 << 15):
        if kind in ("cut", "freeze", "flip", "skip") and len(piece) > left:
            if kind == "flip":
                piece = piece[:left] + bytes([piece[left] ^ 1]) + piece[left + 1 :]
                kind = None
            elif kind == "skip":
                piece, kind = piece[:left] + piece[left + 10 :], None
            else:
                os.write(1, piece[:left])
                if kind == "freeze":
                    time.sleep(60)
                os._exit(0)
        left -= len(piece)
        while piece:
            piece = piece[os.write(1, piece) :]
    if kind == "linger":
        time.sleep(60)
    os._exit(process.wait() & 0x7F)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
