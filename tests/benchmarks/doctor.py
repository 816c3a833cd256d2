"""Time of `inv doctor` if everything answers: a build VM, a registry and a cluster on this machine.

A new Python each time, as for a user. The links have no delay; a real network adds about one round trip for each
request that depends on another. Not included: a GPU, a tenancy.
"""

import json
import shutil
import time

from bench.records.bootstrap import summarize
from tasks.doctor.doctor import all_checks
from tests.benchmarks import Figure, spread
from tests.support.kubernetes import Cluster, unavailable_reason
from tests.support.machines.build_vm import TIMEOUT_SEC, BuildVm, running_build_vm
from tests.support.machines.second_cluster import cluster_seen_by_laptop
from tests.support.paths import ROOT

ROUNDS = 7


def main() -> list[Figure]:
    if why := unavailable_reason():
        raise RuntimeError(why)
    with (
        running_build_vm() as build_vm,
        Cluster(nodes=2) as cluster,
        cluster_seen_by_laptop(build_vm, cluster) as settings,
    ):
        shutil.copytree(ROOT / "manifests", build_vm.project / "manifests")
        build_vm.inv("deploy", **settings)
        took = [_doctor(build_vm, settings) for _ in range(ROUNDS)]
    return [
        Figure(
            name=f"inv doctor, {took[0][1]} of {len(all_checks())} checks asked",
            value=spread(summarize([seconds for seconds, _ in took]), "s"),
            goal="10 s",
        )
    ]


def _doctor(build_vm: BuildVm, settings: dict[str, str]) -> tuple[float, int]:
    """Measure the seconds until the last line, and count the checks that ran."""
    began = time.perf_counter()
    output, _ = build_vm.start_inv("doctor", "--json", **settings).communicate(timeout=TIMEOUT_SEC)
    seconds = time.perf_counter() - began
    answers = json.loads(output)["answers"]
    return seconds, len({(answer["subject"], answer["check"]) for answer in answers if answer["state"] != "unasked"})
