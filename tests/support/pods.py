"""Workers in pods: real kubectl, an Indexed Job, and a volume that all of them share.

The pods run the fake bench, which logs to the shared volume what it does, so that tests can count it.
"""

import contextlib
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.records.paths import LEDGER_FILE
from bench.records.run import PlannedTrial
from remote.fleet.fleet import Fleet
from remote.fleet.ledger import Attempt, Ledger
from remote.fleet.outcome import shared_output_folder, with_shared_output
from remote.fleet.retry_policy import RetryLimits
from remote.hosts.command import Command
from remote.hosts.host_protocol import Host
from remote.hosts.pods.host import PodHost
from remote.hosts.pods.kubectl import Kubectl
from remote.hosts.pods.pod_index import INDEX_LABEL, PodIndex
from tests.support.hosts.local_fleet import (
    LocalFleet,
    mounted_tmpfs,
    run_fake_bench,
    wait_for,
)
from tests.support.kubernetes import Cluster
from tests.support.paths import ROOT

SHARED = "/workspace/results"
SELECTOR = "app=bench"
EVICTION_SCALE = 0.03  # a `toleration_scale` that turns tolerationSeconds of 30 s into 1 s
# Streams go through kubectl and an API server: what takes milliseconds on a local host takes tenths of a second here,
# and seconds on a busy machine. No worker may count as lost because of that.
LIMITS = RetryLimits(lost_after_sec=12.0, reconnect_timeout_sec=120.0, max_attempts=20, grace_sec=5.0, poll_sec=0.2)


def volume() -> list[dict[str, Any]]:
    """Make the shared file system, bound by name like the one in manifests/base/storage.yaml."""
    csi = {"driver": "fss.csi.oraclecloud.com", "volumeHandle": "ocid1.filesystem.test:10.0.0.1:/shared"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    bound_to = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "shared", "namespace": "default"}
    volume = {**common, "csi": csi, "capacity": {"storage": "1Gi"}, "claimRef": bound_to}
    claim = {**common, "volumeName": "shared", "resources": {"requests": {"storage": "1Gi"}}}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "shared"}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": claim},
    ]


def job(size: int, *, grace_sec: int = 2) -> dict[str, Any]:
    """Make the workers' Job from manifests/worker, for any node, as root and without the image's settings."""
    worker: dict[str, Any] = yaml.safe_load((ROOT / "manifests" / "worker" / "job.yaml").read_text())
    worker["spec"] |= {"completions": size, "parallelism": size}
    template = worker["spec"]["template"]
    pod, (container,) = template["spec"], template["spec"]["containers"]
    template["metadata"]["labels"] = {"app": "bench"}
    for key in ("nodeSelector", "imagePullSecrets", "affinity", "securityContext", "serviceAccountName", "subdomain"):
        del pod[key]
    for key in ("envFrom", "securityContext"):
        del container[key]
    pod["terminationGracePeriodSeconds"] = grace_sec
    scratch, shared = {"name": "scratch", "emptyDir": {}}, {"claimName": "shared"}
    pod["volumes"] = [scratch, {"name": "shared", "persistentVolumeClaim": shared}]
    container |= {
        "image": "registry.local/bench:1",
        "imagePullPolicy": "Always",  # so that a pull can fail for a replacement too
        "env": [{"name": "HOME", "value": "/scratch/home"}, {"name": "TMPDIR", "value": "/tmp"}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}, {"name": "shared", "mountPath": SHARED}],
    }
    return worker


class PodFleet(LocalFleet):
    """Fleet of pods instead of local folders; `cluster.faults` injects faults."""

    def __init__(self, folder: Path, cluster: Cluster, size: int) -> None:
        super().__init__(folder)
        self.cluster, self.size = cluster, size
        self.pods = pods_of(cluster.kubeconfig)
        # Tests that share a cluster also share its pods: the label separates their files.
        self.label = secrets.token_hex(4)
        self.shared = f"{SHARED}/{self.label}"
        self.log = cluster.claim_folder("shared") / self.label / "bench.log"
        self.log.parent.mkdir(parents=True)
        self.log.touch()
        for path in (self.log.parent, self.log):
            path.chmod(0o777)

    def deploy(self) -> None:
        self.cluster.apply(*volume(), job(self.size))
        self.wait_ready()

    def wait_ready(self) -> None:
        ready = lambda: len({pod["index"] for pod in self.live() if pod["ready"]}) == self.size  # noqa: E731
        self.cluster.wait_until(ready, f"{self.size} workers to be ready")

    def live(self) -> list[dict[str, Any]]:
        """Return the pods that are not being deleted: name, index, uid, node, ready."""
        pods = []
        for pod in alive(self.cluster):
            meta = pod["metadata"]
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
            index, node = int(meta["labels"][INDEX_LABEL]), pod["spec"].get("nodeName", "")
            pods.append({"name": meta["name"], "index": index, "uid": meta["uid"], "node": node, "ready": ready})
        return pods

    def pod_of(self, worker: str) -> dict[str, Any]:
        index = int(worker.rpartition("-")[2]) - 1
        return next(pod for pod in self.live() if pod["index"] == index)

    def pod_hosts(self) -> list[PodHost]:
        options: Any = {"workdir": f"/scratch/{self.label}", "container": "bench", "python": (sys.executable,)}
        return [PodHost(name=f"worker-{n + 1}", index=n, pods=self.pods, **options) for n in range(self.size)]

    def launch(self, host: Host, planned: PlannedTrial, attempt: int, folder: str) -> Command:
        command = run_fake_bench(host, planned, attempt, folder, log=f"{self.shared}/bench.log")
        output_folder = shared_output_folder(self.shared, "r1", planned.trial_id, attempt)
        return with_shared_output(command, host, output_folder, folder)

    def pod_fleet(self, *, limits: RetryLimits = LIMITS, hosts: Sequence[Host] | None = None, **more: Any) -> Fleet:
        hosts = self.pod_hosts() if hosts is None else hosts
        return self.fleet(hosts, limits=limits, shared_folder=self.shared, **more)

    def use_credential_program(self) -> None:
        """Get the hosts' credentials from a program from now on, as for OKE."""
        self.pods = pods_of(self.cluster.kubeconfig_with_program())

    def restore_credentials(self) -> None:
        """Clear all faults that reject the operator's requests."""
        self.cluster.faults.clear()
        self.cluster.repair_program()

    def repair(self) -> None:
        """Repair every reversible fault."""
        faults = self.cluster.faults
        self.restore_credentials()
        faults.start_server()
        faults.repair_pulls("*")
        for node in self.cluster.objects("nodes"):
            faults.set_gpus(node["metadata"]["name"], 1)
            faults.restore_node(node["metadata"]["name"])

    @property
    def outputs(self) -> Path:
        """Folder of the attempts' outputs on this machine."""
        return self.log.parent / "r1"

    def fill_volume(self) -> None:
        """Fill the volume of `running_pod_fleet(volume_size=...)` to the last byte."""
        with contextlib.suppress(OSError), (self.outputs / "filler").open("ab", buffering=0) as filler:
            while filler.write(bytes(1 << 12)):
                pass

    def free_volume(self) -> None:
        (self.outputs / "filler").unlink(missing_ok=True)

    def strike_trials(
        self, strike: Callable[[dict[str, Any]], None], *, limits: RetryLimits = LIMITS
    ) -> dict[str, int]:
        """Run three trials on three workers and call `strike` on each worker's pod at a different moment.

        `start`: the ledger has the attempt, the host may not have it yet; `middle`: the trial runs; `last`: its result
        is complete and its process still runs. Asserts that all trials succeed.
        Returns the number of starts by moment.
        """
        ids = ("slow-start", "slow-middle", "success-then-lingers-last")
        self.plan("slow start", "slow middle", "success-then-lingers last", workers=3)
        moments = ("ledger", "started", "succeeded")

        def attempts(trial_id: str) -> list[Attempt]:
            return Ledger(self.run_folder / LEDGER_FILE).entries[trial_id].attempts

        def reached(trial_id: str, moment: str) -> bool:
            return bool(attempts(trial_id) if moment == "ledger" else self.bench_log_lines(moment, trial_id))

        with self.running(self.pod_fleet(hosts=with_short_silence(self.pod_hosts()), limits=limits)):
            for trial_id, moment in zip(ids, moments, strict=True):
                wait_for(lambda t=trial_id, m=moment: reached(t, m), f"{trial_id}: {moment}")
                strike(self.pod_of(attempts(trial_id)[-1].worker))
            self.release_slow_trials()
        assert self.statuses() == dict.fromkeys(ids, "SUCCEEDED")
        return {trial_id.rpartition("-")[2]: len(self.bench_log_lines("started", trial_id)) for trial_id in ids}


@contextlib.contextmanager
def running_pod_fleet(folder: Path, size: int, *, volume_size: str | None = None, **options: Any) -> Iterator[PodFleet]:
    """Run a cluster with one worker on each of `size` nodes. Skips the test if no cluster can be started.

    With `volume_size` the run's results on the shared volume are a file system of that size, which a test can fill.
    `options` are those of `Cluster`.
    """
    with (
        Cluster(nodes=size, **options) as cluster,
        PodFleet(folder, cluster, size) as pods,
        contextlib.ExitStack() as stack,
    ):
        if volume_size is not None:
            stack.enter_context(mounted_tmpfs(pods.outputs, volume_size)).chmod(0o777)
        pods.deploy()
        yield pods


def fixtures(size: int, **options: Any) -> tuple[Any, Any]:
    """Make two fixtures: `shared_fleet`, a cluster for the module, and `pods`, a test's own run folder on it.

    Every test starts with all faults repaired and all workers ready.
    """

    @pytest.fixture(scope="module")
    def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodFleet]:
        with running_pod_fleet(tmp_path_factory.mktemp("pods"), size, **options) as pods:
            yield pods

    @pytest.fixture
    def pods(shared_fleet: PodFleet, tmp_path: Path) -> Iterator[PodFleet]:
        shared_fleet.repair()
        shared_fleet.wait_ready()
        fresh = PodFleet(tmp_path, shared_fleet.cluster, size)
        yield fresh
        fresh.repair()

    return shared_fleet, pods


def with_short_silence(hosts: Sequence[PodHost]) -> list[PodHost]:
    """Return these hosts with a shorter time after which a silent stream counts as lost: 4 s instead of 15."""
    return [replace(host, silence_sec=4.0) for host in hosts]


def skewed_clock(folder: Path) -> Path:
    """Build a library that changes the clock of the programs that preload it. Skips the test without cc.

    Source: tests/support/kubernetes/node/clock.c.
    """
    compiler, library = shutil.which("cc"), folder / "clock.so"
    if compiler is None:
        pytest.skip("a wrong clock needs a C compiler")
    source = ROOT / "tests" / "support" / "kubernetes" / "node" / "clock.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    folder.chmod(0o755)
    return library


def alive(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the pods that run and are not being deleted."""
    pods = (pod for pod in cluster.objects("pods", "default") if not pod["metadata"].get("deletionTimestamp"))
    return [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]


def pods_of(kubeconfig: Path) -> PodIndex:
    return PodIndex(Kubectl(namespace="default", kubeconfig=str(kubeconfig)), SELECTOR)
