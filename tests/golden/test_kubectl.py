"""The two commands that a fleet of pods is made of, word for word.

After a deliberate change: UPDATE_GOLDEN=1 pytest tests/golden
"""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from remote.cluster.kubectl import Kubectl
from remote.pods.host import PodHost
from remote.pods.listing import Pods
from tests.unit.remote.pods.test_listing import READY

GOLDEN = Path(__file__).with_name("commands") / "kubectl.txt"


def test_the_commands_for_a_pod_are_the_golden_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []

    def run_program(argv: tuple[str, ...], **_: object) -> None:
        ran.append(argv)
        raise KeyboardInterrupt

    monkeypatch.setattr("remote.pods.listing.run_program", run_program)
    kubectl = Kubectl(namespace="qlora-fleet", context="it's mine", kubeconfig="/home/me/.kube/config")
    pods = Pods(kubectl, "app.kubernetes.io/name=bench,app.kubernetes.io/component=worker")
    with pytest.raises(KeyboardInterrupt):
        pods.all()
    host = PodHost(name="worker-0", index=0, pods=pods, workdir="/scratch/qlora-fleet", container="bench")
    ran.append(host.exec_argv(replace(READY, name="bench-0-x7k2p")))
    # The program's length and digest are in the command; its content travels on standard input.
    text = "".join(re.sub(r"\b\d{4,6}\b", "SIZE", shlex.join(argv)) + "\n" for argv in ran)
    text = re.sub(r"inpod_[0-9a-f]{12}", "inpod_DIGEST", text)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
