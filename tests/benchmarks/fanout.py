"""Cost of a fleet of pods: a command in each of 64, this process's memory, collected files, API calls.

Against the tests' own cluster with real kubectl: its API server is Python and its pods are processes of this machine,
so the ratios stand for a real cluster better than the seconds do.
"""

import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.records.bootstrap import summarize
from bench.records.run import RunRecord
from remote.fleet.retry_policy import RetryLimits
from remote.hosts.command import Command
from remote.hosts.pods.host import SILENCE_SEC
from remote.jobs.job import Agent
from remote.jobs.transfer import pull
from tests.benchmarks import Figure, compare_with, seconds, spread
from tests.support.kubernetes import Cluster, unavailable_reason
from tests.support.paths import ROOT
from tests.support.pods import PodFleet, hosts_of, pods_of

PODS, AT_ONCE, PAIRS = 64, 16, 5
COLLECTED_BYTES = 200 * 10**6
WATCHED_SEC, TRIAL_SEC, TRIALS = 60.0, 60.0, 8
TRIVIAL = Command(argv=("true",))


def main() -> list[Figure]:
    if why := unavailable_reason():
        raise RuntimeError(why)
    with tempfile.TemporaryDirectory() as folder, Cluster(nodes=PODS) as cluster:
        pods = PodFleet(Path(folder), cluster, PODS)
        pods.deploy()
        return [
            *_fan_out(pods),
            *_memory(pods),
            *_collect(pods, Path(folder)),
            _overhead(cluster, Path(folder)),
            _api_calls(cluster, Path(folder)),
            _noticed(cluster, Path(folder)),
        ]


def _fan_out(pods: PodFleet) -> list[Figure]:
    names = "".join(f"{pod['name']}\n" for pod in pods.live()).encode()
    argv = ("xargs", "-P", str(AT_ONCE), "-I", "{}", "kubectl", "exec", "{}", "-c", "bench", "--", "true")
    hosts = pods.pod_hosts()
    broken = []

    def bare() -> None:
        done = subprocess.run(
            argv, input=names, env=pods.cluster.environment, stderr=subprocess.PIPE, check=False, timeout=300
        )
        broken.append(done.stderr.count(b"error:"))  # plain kubectl sometimes fails on a busy machine

    def ours() -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            done = list(pool.map(lambda host: host.run(TRIVIAL, timeout_sec=120.0).exit_code, hosts))
        assert done == [0] * PODS

    ours()
    bare()  # caches of kubectl and of the file system
    pairs = [(seconds(ours), seconds(bare)) for _ in range(PAIRS)]
    name = f"a command in {PODS} pods, {AT_ONCE} at a time"
    fleet, xargs = compare_with(pairs, name, "the same by xargs -P", of="xargs -P and bare kubectl exec", goal="1.2 x")
    return [fleet, replace(xargs, ratio=f"{sum(broken)} of {PODS * len(broken)} failed")]


def _memory(pods: PodFleet) -> list[Figure]:
    """Measure the operator's peak memory after a fan-out over few pods and over many."""
    seconds_by_way = {}
    for count in (4, PODS):
        arguments = (str(pods.cluster.kubeconfig), pods.label, str(count))
        argv = (sys.executable, "-m", "tests.benchmarks.fanout", *arguments)
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
        seconds_by_way[count] = int(done.stdout)
    return [
        Figure(
            name=f"operator's memory, {PODS} pods",
            value=f"{seconds_by_way[PODS] / 1e6:.1f} MB",
            ratio=f"{seconds_by_way[PODS] / seconds_by_way[4]:.2f} x of 4 pods ({seconds_by_way[4] / 1e6:.1f} MB)",
            goal="flat",
        )
    ]


def operator(kubeconfig: Path, label: str, count: int) -> None:
    """Print this process's peak in bytes after one concurrent command in each of `count` pods."""
    import resource

    hosts = hosts_of(pods_of(kubeconfig), count, label)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda host: host.run(TRIVIAL, timeout_sec=120.0), hosts))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def _collect(pods: PodFleet, folder: Path) -> list[Figure]:
    host = pods.pod_hosts()[0]
    target = f"/scratch/{pods.label}/collected"
    fill = f"mkdir -p {target} && head -c {COLLECTED_BYTES} /dev/urandom > {target}/big"
    host.run(Command(argv=("sh", "-c", fill)), timeout_sec=120.0)
    pod = str(pods.pod_of("worker-1")["name"])
    tar = f"set -o pipefail; kubectl exec {pod} -c bench -- tar cf - -C {target} big | tar xf - -C"

    def ours(into: Path) -> None:
        assert pull(Agent(host), target, into).byte_count == COLLECTED_BYTES

    def raw(into: Path) -> None:
        into.mkdir()
        argv = ("bash", "-c", f"{tar} {into} && sync {into}/big")
        subprocess.run(argv, env=pods.cluster.environment, check=True, timeout=300)

    pairs = [
        (seconds(partial(ours, folder / f"ours-{number}")), seconds(partial(raw, folder / f"raw-{number}")))
        for number in range(3)
    ]
    ratio = summarize([theirs / mine for mine, theirs in pairs])
    return [
        Figure(
            name="verified collect of 200 MB",
            value=spread(summarize([COLLECTED_BYTES / 1e6 / mine for mine, _ in pairs]), "MB/s"),
            ratio=f"{spread(ratio, 'x')} of tar over kubectl exec",
            goal="0.9 x",
        ),
        Figure(
            name="the same by tar, on disk, not verified",
            value=spread(summarize([COLLECTED_BYTES / 1e6 / theirs for _, theirs in pairs]), "MB/s"),
        ),
    ]


def _overhead(cluster: Cluster, folder: Path) -> Figure:
    """Measure the overhead of short consecutive trials on one pod."""
    pods = PodFleet(folder / "overhead", cluster, 1)
    pods.folder.mkdir()
    pods.plan(*(f"fine {number}" for number in range(TRIALS)), workers=1)
    began = time.perf_counter()
    pods.pod_fleet().run()
    each = (time.perf_counter() - began) / TRIALS
    assert set(pods.statuses().values()) == {"SUCCEEDED"}
    by_hand = _by_hand(pods)
    return Figure(
        name="what fleet and pod add to a trial",
        value=f"{each - by_hand:.2f} s",
        ratio=f"{100 * (each - by_hand) / TRIAL_SEC:.1f} % of a trial of 60 s ({each:.2f} s, {by_hand:.2f} s by hand)",
        goal="3 %",
    )


def _by_hand(pods: PodFleet) -> float:
    """Measure the mean time of the same trial started by plain kubectl exec."""
    host, pod = pods.pod_hosts()[0], str(pods.pod_of("worker-1")["name"])
    planned = RunRecord.read(pods.run_folder / "run.json").planned[0]
    began = time.perf_counter()
    for number in range(TRIALS):
        folder = f"/scratch/{pods.label}/by-hand/{number}"
        command = pods.launch(host, planned, 100 + number, folder)
        trial = planned.trial.to_text()
        prepare = ("sh", "-c", 'mkdir -p "$0" && cat > "$0/trial.json" && export "$1" && shift && exec "$@"', folder)
        (variable,) = (f"{name}={value}" for name, value in command.environment.items())
        argv = ("exec", "-i", pod, "-c", "bench", "--", *prepare, variable, *command.argv)
        done = pods.cluster.kubectl(*argv, stdin=trial.encode())
        assert done.returncode == 0, done.stderr.decode()
    return (time.perf_counter() - began) / TRIALS


def _api_calls(cluster: Cluster, folder: Path) -> Figure:
    """Count requests while four trials run undisturbed."""
    pods = PodFleet(folder / "calls", cluster, 4)
    pods.folder.mkdir()
    pods.plan(*(f"slow {number}" for number in range(4)), workers=4)
    with pods.running(pods.pod_fleet()):
        while len(pods.bench_log_lines("started")) < 4:
            time.sleep(0.1)
        time.sleep(2.0)
        before = len(cluster.requests())
        time.sleep(WATCHED_SEC)
        made = len(cluster.requests()) - before
        pods.release_slow_trials()
    rate = made / 4 / (WATCHED_SEC / 60)
    return Figure(
        name="API calls while trials run",
        value=f"{rate:.2f} per minute and pod",
        ratio=f"{made} in {WATCHED_SEC:g} s with 4 pods",
    )


def _noticed(cluster: Cluster, folder: Path) -> Figure:
    """Measure the time from a node's silence to its trial's start elsewhere, with default settings."""
    pods = PodFleet(folder / "noticed", cluster, 2)
    pods.folder.mkdir()
    pods.plan("slow", workers=2)
    with pods.running(pods.pod_fleet(limits=RetryLimits(lost_after_sec=60.0 - SILENCE_SEC))):
        while not pods.bench_log_lines("started"):
            time.sleep(0.05)
        node = str(pods.pod_of(pods.bench_log_lines("started")[0].split()[3])["node"])
        time.sleep(3.0)
        cluster.faults.silence_node(node)
        began = time.perf_counter()
        while len(pods.bench_log_lines("started")) < 2:
            time.sleep(0.05)
        taken = time.perf_counter() - began
        cluster.faults.restore_node(node)
        pods.release_slow_trials()
    return Figure(name="a silent node's trial is begun elsewhere after", value=f"{taken:.1f} s", goal="60 s")


if __name__ == "__main__":
    operator(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
