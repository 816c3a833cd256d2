"""Time and API calls of an unchanged `inv deploy` on the tests' cluster (four nodes).

That cluster answers from memory on this machine. A real one adds about two sequential network round trips; other
requests are concurrent. `inv` is forked from a process that has its libraries: its start does not
count.
"""

import subprocess
import tempfile
from pathlib import Path

from bench.records.bootstrap import summarize
from tests.benchmarks import Figure, seconds, spread
from tests.support.forked import INV_LIBRARIES, ForkServer
from tests.support.kubernetes import Cluster, unavailable_reason
from tests.system.cluster.conftest import Operator, make_operator

ROUNDS = 7


def main() -> list[Figure]:
    if why := unavailable_reason():
        raise RuntimeError(why)
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(nodes=4, image_back_off_sec=10.0) as cluster,
        ForkServer(Path(folder), INV_LIBRARIES) as server,
    ):
        operator = make_operator(cluster, Path(folder), server)
        operator.set_cluster(size=4)
        first = seconds(lambda: operator.inv("deploy", stdin="a password\n"))
        before = len(cluster.requests())
        unchanged = [seconds(lambda: operator.inv("deploy")) for _ in range(ROUNDS)]
        calls = (len(cluster.requests()) - before) / ROUNDS
        rendered = [seconds(lambda: _kustomize(operator)) for _ in range(ROUNDS)]
        cluster.faults.fail_pulls("*", "timeout")
        waited = _calls_while_waiting(operator)
    return [
        Figure(name="inv deploy, 4 pods from nothing to Ready", value=f"{first:.2f} s, n=1"),
        Figure(name="inv deploy, unchanged", value=spread(summarize(unchanged), "s"), goal="3 s"),
        Figure(name="  of which kubectl kustomize", value=spread(summarize(rendered), "s")),
        Figure(name="  API calls", value=f"{calls:.0f}"),
        Figure(name="inv deploy while it waits, API calls per minute and pod", value=f"{waited:.1f}"),
    ]


def _kustomize(operator: Operator) -> None:
    folder = str(operator.project / "manifests" / "overlays" / "pods")
    subprocess.run(("kubectl", "kustomize", folder), stdout=subprocess.DEVNULL, check=True)


def _calls_while_waiting(operator: Operator) -> float:
    """Count calls per minute and pod over half a minute of waiting for an image that never arrives."""
    operator.set_cluster(ready_timeout_sec=1.0, image=f"fra.ocir.io/ns/another@sha256:{'cd' * 32}")
    operator.inv("deploy", code=3)
    operator.set_cluster(ready_timeout_sec=30.0)
    before = len(operator.cluster.requests())
    minutes = seconds(lambda: operator.inv("deploy", code=3)) / 60
    return (len(operator.cluster.requests()) - before) / minutes / 4
