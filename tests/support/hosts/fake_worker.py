"""A pod without a cluster: kubectl is fake_kubectl.py; the program in the pod is real."""

import json
import sys
from pathlib import Path

from remote.hosts.command import Command
from remote.hosts.host_protocol import Completed
from remote.hosts.pods.host import PodHost
from remote.hosts.pods.kubectl import Kubectl
from remote.hosts.pods.pod_index import PodIndex
from tests.support.hosts.local_fleet import PATIENCE_SEC
from tests.support.paths import ROOT

FAKE_KUBECTL = ROOT / "tests" / "support" / "hosts" / "fake_kubectl.py"


def pod_line(
    name: str, index: int, *, created: str = "2026-01-01T00:00:00Z", phase: str = "Running", **more: str
) -> str:
    """Format a pod like LIST_TEMPLATE."""
    parts = [name, str(index), created, more.get("deleted", ""), more.get("node", "node-1"), "10.0.0.1"]
    return "\t".join([*parts, phase, more.get("reason", ""), more.get("ready", "True")]) + "\n"


class FakePod:
    """Folder with the fake kubectl's files, and the host that uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "kubectl"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {FAKE_KUBECTL} "$@"\n')
        program.chmod(0o755)
        self.pods = PodIndex(Kubectl(namespace="n", program=str(program)), "app=bench")
        self.host = PodHost(
            name="worker-0",
            index=0,
            pods=self.pods,
            workdir=str(folder / "scratch"),
            container="bench",
            python=(sys.executable,),
        )
        self.list_pods(pod_line("bench-0-abc", 0))

    def list_pods(self, *lines: str) -> None:
        (self.folder / "pods.txt").write_text("".join(lines))
        self.pods._read_at = None

    def fault(self, fault: str, after: int = 0, *, times: int = 1, **more: str) -> None:
        (self.folder / "fault.json").write_text(json.dumps({"fault": fault, "after": after, "times": times, **more}))

    def calls(self, verb: str) -> int:
        return (self.folder / "calls.log").read_text().splitlines().count(verb)

    def run(self, *argv: str, **options: object) -> Completed:
        more = {name: options.pop(name) for name in ("environment", "folder") if name in options}
        options.setdefault("timeout_sec", PATIENCE_SEC)
        return self.host.run(Command(argv=argv, **more), **options)  # type: ignore[arg-type]
