"""Workers that are pods: real kubectl, an Indexed Job, a volume that all of them share.

The cluster is the tests' own, or that of `--kubeconfig` (given_job.py says what differs there).

The stand-in bench runs in the pods, and notes on the shared volume what it did, so that a test can count it.
"""

import contextlib
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.records.paths import LEDGER_FILE
from bench.records.run import PlannedTrial, RunRecord
from remote.cluster.kubectl import Kubectl
from remote.cluster.labels import INDEX_LABEL
from remote.fleet.fleet import Fleet
from remote.fleet.ledger import Attempt, Ledger
from remote.fleet.retry_policy import RetryLimits
from remote.fleet.shared_volume import on_shared_volume, place_of
from remote.hosts.command import Command
from remote.hosts.host import Host
from remote.pods.host import PodHost
from remote.pods.pod_index import Pods
from tests.support.hosts.local_fleet import FAKE_BENCH, LocalFleet, Looking, mounted, run_fake_bench, wait_for
from tests.support.hosts.sample_job import BENCH_THERE, PYTHON_THERE, given_job, given_volume, renew, shared_volume
from tests.support.kubernetes import Cluster
from tests.support.kubernetes.real_cluster import AnyCluster, GivenCluster, given
from tests.support.paths import ROOT

SHARED = "/workspace/results"
SELECTOR = "app=bench"
EVICTION = 0.03  # as `toleration_scale`: tolerationSeconds of 30 s become one second
# Streams go through kubectl and an API server: what takes milliseconds on a local host takes tenths of seconds here. On
# a busy machine it takes seconds, and no worker must count as lost for that.
LIMITS = RetryLimits(lost_after_sec=12.0, give_up_after_sec=120.0, max_attempts=20, grace_sec=5.0, every_sec=0.2)


def volume() -> list[dict[str, Any]]:
    """The shared file system, bound by name as manifests/base/storage.yaml binds it."""
    csi = {"driver": "fss.csi.oraclecloud.com", "volumeHandle": "ocid1.filesystem.test:10.0.0.1:/shared"}
    return shared_volume("shared", "default", csi=csi)


def job(size: int, *, grace_sec: int = 2) -> dict[str, Any]:
    """Workers as manifests/worker has them, on any node, without the image's own settings."""
    worker = yaml.safe_load((ROOT / "manifests" / "worker" / "job.yaml").read_text())
    stay = worker["spec"]["template"]["spec"]["containers"][0]["args"][-1]
    mounts = [{"name": "scratch", "mountPath": "/scratch"}, {"name": "shared", "mountPath": SHARED}]
    lost = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
        for key in ("not-ready", "unreachable")
    ]
    container = {
        "name": "bench",
        "image": "registry.local/bench:1",
        "imagePullPolicy": "Always",  # so that a pull can fail for a replacement too
        "args": ["sh", "-c", stay],
        "env": [{"name": "HOME", "value": "/scratch/home"}, {"name": "TMPDIR", "value": "/tmp"}],
        "volumeMounts": mounts,
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "bench"},
        "spec": {
            "completionMode": "Indexed",
            "completions": size,
            "parallelism": size,
            "backoffLimitPerIndex": 1000,
            "template": {
                "metadata": {"labels": {"app": "bench"}},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": grace_sec,
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}, *lost],
                    "containers": [container],
                    "volumes": [
                        {"name": "scratch", "emptyDir": {}},
                        {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}},
                    ],
                },
            },
        },
    }


class PodFleet(LocalFleet):
    """Pods instead of folders; `cluster.faults` is what befalls them."""

    def __init__(self, folder: Path, cluster: AnyCluster, size: int) -> None:
        super().__init__(folder)
        self.cluster, self.size = cluster, size
        self.namespace = cluster.home if isinstance(cluster, GivenCluster) else "default"
        self.pods = pods_of(cluster.kubeconfig, self.namespace)
        # Tests that share a cluster share its pods too: nothing of one may be taken for another's.
        self.label = secrets.token_hex(4)
        self.shared = f"{SHARED}/{self.label}"
        self.log = cluster.claim_folder("shared") / self.label / "bench.log"
        self.log.parent.mkdir(parents=True)
        self.log.touch()
        for path in (self.log.parent, self.log):
            path.chmod(0o777)

    def deploy(self) -> None:
        if isinstance(self.cluster, GivenCluster):
            shutil.copy(FAKE_BENCH, self.cluster.claim_folder("shared") / BENCH_THERE)
            self.cluster.apply(*given_volume(self.cluster), given_job(self.cluster, job(self.size)))
        else:
            self.cluster.apply(*volume(), job(self.size))
        self.wait_ready()

    def wait_ready(self) -> None:
        ready = lambda: len({pod["index"] for pod in self.live() if pod["ready"]}) == self.size  # noqa: E731
        self.cluster.wait_until(ready, f"{self.size} workers to be ready")

    def live(self) -> list[dict[str, Any]]:
        """Pods that are not being deleted: name, index, uid, node, ready."""
        found = []
        for pod in alive(self.cluster):
            meta = pod["metadata"]
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
            index, node = int(meta["labels"][INDEX_LABEL]), pod["spec"].get("nodeName", "")
            found.append({"name": meta["name"], "index": index, "uid": meta["uid"], "node": node, "ready": ready})
        return found

    def pod_of(self, worker: str) -> dict[str, Any]:
        index = int(worker.rpartition("-")[2]) - 1
        return next(pod for pod in self.live() if pod["index"] == index)

    def pod_hosts(self) -> list[PodHost]:
        return hosts_of(self.pods, self.size, self.label)

    def launch(self, host: Host, planned: PlannedTrial, attempt: int, folder: str) -> Command:
        return launch(self.shared, host, planned, attempt, folder)

    def pod_fleet(self, *, limits: RetryLimits = LIMITS, hosts: Sequence[Host] | None = None, **more: Any) -> Fleet:
        hosts = self.pod_hosts() if hosts is None else hosts
        looking = partial(Looking, log=self.log)
        return self.fleet(hosts, limits=limits, shared=self.shared, agents=looking, **more)

    def log_in_by_program(self) -> None:
        """From now on the hosts' credentials come from a program, as OKE's do."""
        if isinstance(self.cluster, GivenCluster):
            pytest.skip("a credential program that fails when asked to: only the tests' own cluster has one")
        self.pods = pods_of(self.cluster.by_program(), self.namespace)

    def let_in(self) -> None:
        """Nothing refuses the operator any more."""
        self.cluster.faults.clear()
        if isinstance(self.cluster, Cluster):
            self.cluster.mend_program()

    def mend(self) -> None:
        """Undo every fault that can be undone."""
        faults = self.cluster.faults
        self.let_in()
        faults.server_back()
        faults.speak()
        faults.mend_pulls("*")
        if self.cluster.objects("resourcequotas", self.namespace):
            self.cluster.kubectl("delete", "resourcequota", "--all", f"--namespace={self.namespace}")
        for node in self.cluster.objects("nodes"):
            faults.set_gpus(node["metadata"]["name"], 1)
            faults.find_node(node["metadata"]["name"])
        if isinstance(self.cluster, GivenCluster):
            renew(self.cluster, given_job(self.cluster, job(self.size)))

    @property
    def outputs(self) -> Path:
        """Where the attempts' outputs lie on this machine."""
        return self.log.parent / "r1"

    def fill_volume(self) -> None:
        """No byte more goes onto the volume of `start(volume_size=...)`; what lies there stays."""
        with contextlib.suppress(OSError), (self.outputs / "filler").open("ab", buffering=0) as filler:
            while filler.write(bytes(1 << 12)):
                pass

    def free_volume(self) -> None:
        (self.outputs / "filler").unlink(missing_ok=True)

    def struck(self, strike: Callable[[dict[str, Any]], None], *, limits: RetryLimits = LIMITS) -> dict[str, int]:
        """Three trials on three workers, each struck at another moment; how often each of them was begun.

        `start`: the ledger has its attempt, the host perhaps not yet; `middle`: it runs; `last`: its result is whole
        and its process has not ended. Asserts that all of them succeed, and that none begins again after that.
        """
        ids = ("slow-start", "slow-middle", "success-then-lingers-last")
        self.plan("slow start", "slow middle", "success-then-lingers last", workers=3)
        moments = ("ledger", "started", "succeeded")

        def attempts(trial_id: str) -> list[Attempt]:
            return Ledger(self.run_folder / LEDGER_FILE).entries[trial_id].attempts

        def reached(trial_id: str, moment: str) -> bool:
            return bool(attempts(trial_id) if moment == "ledger" else self.noted(moment, trial_id))

        with self.running(self.pod_fleet(hosts=hasty(self.pod_hosts()), limits=limits)):
            for trial_id, moment in zip(ids, moments, strict=True):
                wait_for(lambda t=trial_id, m=moment: reached(t, m), f"{trial_id}: {moment}")
                strike(self.pod_of(attempts(trial_id)[-1].worker))
            self.say_go()
        assert self.ends() == dict.fromkeys(ids, "SUCCEEDED")
        assert self.started_after_success() == []
        return {trial_id.rpartition("-")[2]: len(self.noted("started", trial_id)) for trial_id in ids}


@contextlib.contextmanager
def started(
    folder: Path, size: int, config: pytest.Config, *, volume_size: str | None = None, **options: Any
) -> Iterator[PodFleet]:
    """A cluster with one worker on each of `size` nodes. Skips where none can be started.

    With `volume_size` the run's results on the shared volume are a file system of that size, which can be full.
    `options` are those of `Cluster`; the cluster of --kubeconfig has none of them, and no such volume.
    """
    other = given(config, folder)
    if other is not None:
        other.claim_folder("shared")  # skips without one
        with other.at_home() as there, PodFleet(folder, there, size) as pods:
            pods.deploy()
            yield pods
        return
    with (
        Cluster(nodes=size, **options) as cluster,
        PodFleet(folder, cluster, size) as pods,
        contextlib.ExitStack() as own,
    ):
        if volume_size is not None:
            own.enter_context(mounted(pods.outputs, volume_size)).chmod(0o777)
        pods.deploy()
        yield pods


def fixtures(size: int, **options: Any) -> tuple[Any, Any]:
    """Two fixtures for a module: a cluster that its tests share, and each test's own workers' folder on it.

    A test finds every fault mended, every worker ready and a run's folder of its own, whatever the one before it left.
    """

    @pytest.fixture(scope="module")
    def shared_fleet(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[PodFleet]:
        with started(tmp_path_factory.mktemp("pods"), size, pytestconfig, **options) as pods:
            yield pods

    @pytest.fixture
    def pods(shared_fleet: PodFleet, tmp_path: Path) -> Iterator[PodFleet]:
        shared_fleet.mend()
        shared_fleet.wait_ready()
        fresh = PodFleet(tmp_path, shared_fleet.cluster, size)
        yield fresh
        fresh.mend()

    return shared_fleet, pods


def hasty(hosts: Sequence[PodHost]) -> list[PodHost]:
    """The same workers, giving a silent stream up after 4 s instead of 15."""
    return [replace(host, silence_sec=4.0) for host in hosts]


def worker_of(pod: dict[str, Any]) -> str:
    return f"worker-{pod['index'] + 1}"


def skewed_clock(folder: Path) -> Path:
    """A library that gives what it is preloaded into another time of day (tests/support/kubernetes/node/clock.c). Skips
    without cc."""
    compiler, made = shutil.which("cc"), folder / "clock.so"
    if compiler is None:
        pytest.skip("a wrong clock needs a C compiler")
    source = ROOT / "tests" / "support" / "kubernetes" / "node" / "clock.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", made, source], check=True)
    folder.chmod(0o755)
    return made


def alive(cluster: AnyCluster) -> list[dict[str, Any]]:
    """The pods that run and are not being deleted."""
    pods = (pod for pod in cluster.objects("pods", "default") if not pod["metadata"].get("deletionTimestamp"))
    return [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]


def pods_of(kubeconfig: Path, namespace: str = "default") -> Pods:
    return Pods(Kubectl(namespace=namespace, kubeconfig=str(kubeconfig)), SELECTOR)


def hosts_of(pods: Pods, size: int, label: str) -> list[PodHost]:
    return [
        PodHost(
            name=f"worker-{index + 1}",
            index=index,
            pods=pods,
            workdir=f"/scratch/{label}",
            container="bench",
            python=(sys.executable,) if is_ours(pods) else PYTHON_THERE,
        )
        for index in range(size)
    ]


def launch(shared: str, host: Host, planned: PlannedTrial, attempt: int, folder: str) -> Command:
    bench = str(FAKE_BENCH) if host.python == (sys.executable,) else f"{SHARED}/{BENCH_THERE}"
    command = run_fake_bench(host, planned, attempt, folder, log=f"{shared}/bench.log", bench=bench)
    place = place_of(shared, "r1", planned.trial_id, attempt)
    return on_shared_volume(command, host, place, folder)


def is_ours(pods: Pods) -> bool:
    """Whether the pods are the tests' own cluster's, which see this machine's files and programs."""
    return pods.kubectl.namespace == "default"


def operate(folder: Path, kubeconfig: Path, namespace: str, label: str) -> None:
    """An operator with a process of its own, which can be killed: work on the run in `folder` until it is done."""
    record, ledger = RunRecord.read(folder / "run" / "run.json"), Ledger(folder / "run" / LEDGER_FILE)
    shared = f"{SHARED}/{label}"
    Fleet(
        hosts=hosts_of(pods_of(kubeconfig, namespace), len(record.workers), label),
        run=record,
        run_folder=folder / "run",
        ledger=ledger,
        launch=partial(launch, shared),
        limits=LIMITS,
        shared=shared,
    ).run()


if __name__ == "__main__":
    operate(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
