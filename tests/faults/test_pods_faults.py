"""Each fault by itself, over real kubectl and the tests' own cluster: at the start, in the middle and at the last byte.

Not covered: a real kernel's out-of-memory killer, a real network between nodes.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote.agent import Agent, HostRefused
from remote.command import Command
from remote.host import Completed, HostUnreachable
from remote.job import HostBusy, Job, JobSpec, JobState
from remote.ledger import LEDGER_FILE, Ledger
from remote.pod import PodHost
from remote.pods import ClusterRefused, Kubectl, PodGone, Pods
from remote.transfer import pull, push
from tests.cluster.faults import ENDINGS
from tests.faults import podyard
from tests.faults.podyard import LIMITS, SELECTOR, PodYard, start
from tests.unit.remote.hostyard import wait_for

PODS = 3
QUICK_SILENCE = 1.5


@pytest.fixture(scope="module")
def shared_yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodYard]:
    yield from start(tmp_path_factory.mktemp("pods"), PODS, toleration_scale=0.03)


@pytest.fixture
def yard(shared_yard: PodYard, tmp_path: Path) -> Iterator[PodYard]:
    """The module's cluster with every fault mended, every worker ready, and a run's folder of its own."""
    mend(shared_yard)
    shared_yard.wait_ready()
    fresh = PodYard(tmp_path, shared_yard.cluster, PODS)
    yield fresh
    mend(fresh)


def mend(yard: PodYard) -> None:
    faults = yard.cluster.faults
    faults.clear()
    faults.server_back()
    faults.speak()
    for node in range(PODS):
        faults.find_node(f"node-{node}")


def hasty(yard: PodYard) -> list[PodHost]:
    return [replace(host, silence_sec=QUICK_SILENCE) for host in yard.pod_hosts()]


def run(host: PodHost, *argv: str, **options: Any) -> Completed:
    return host.run(Command(argv=argv), **{"timeout_sec": 60.0, **options})


# --- one command ------------------------------------------------------------------------------------------------------

SAYS = "begins\nends\n"
WHOLE = 33 + 2 * 5 + len(SAYS) + 5 + len(f"0 exited {0:08x} {0:08x} {0:08x}")


@pytest.mark.parametrize("how", ENDINGS)
def test_a_stream_ended_anyhow_before_the_last_byte_is_lost_and_after_it_is_not(yard: PodYard, how: str) -> None:
    host = replace(hasty(yard)[0], silence_sec=0.6)

    def says() -> Completed:
        return run(host, "sh", "-c", "echo begins; sleep 0.05; echo ends")

    for after in (0, 33, WHOLE // 2, WHOLE - 1):
        yard.cluster.faults.exec(how, after_stdout_bytes=after)
        with pytest.raises(HostUnreachable, match="worker-1"):
            says()
    yard.cluster.faults.exec(how)  # all output is out, and only the Status is wrong or missing
    assert says() == Completed(exit_code=0, stdout=SAYS.encode())
    assert yard.cluster.faults.struck()["execs"] == 5


def test_a_remote_that_leaves_megabytes_unread_ends_with_its_own_code(yard: PodYard) -> None:
    host = yard.pod_hosts()[0]
    assert run(host, "sh", "-c", "exit 3", stdin=b"x" * (20 << 20)).exit_code == 3
    assert run(host, "head", "-c", "5", stdin=b"hello" * (4 << 20)).stdout == b"hello"


def test_input_of_megabytes_is_whole_and_so_is_output(yard: PodYard) -> None:
    content = os.urandom(20 << 20)
    host = yard.pod_hosts()[0]
    assert run(host, "cat", stdin=io.BytesIO(content)).stdout == content
    run(host, "sh", "-c", "exec >&- 2>&-; cat > /scratch/copy", stdin=content)
    assert run(host, "cat", "/scratch/copy").stdout == content


def test_a_killed_kubectl_leaves_nothing_running_in_the_pod(yard: PodYard) -> None:
    host = yard.pod_hosts()[0]

    def kill(_: bytes) -> None:
        kill_kubectls()

    with pytest.raises(HostUnreachable, match="broke before the command's end"):
        run(host, "sh", "-c", "echo here; sleep 77", on_stdout=kill)
    pod = yard.pod_of("worker-1")["name"]
    wait_for(lambda: "77" not in str(yard.cluster.processes(pod)), "the command is gone")


def kill_kubectls() -> None:
    """Every kubectl that this process has started."""
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                if b"exec\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)


# --- who may, and where -----------------------------------------------------------------------------------------------


def test_a_role_without_pods_exec_is_refused_and_not_asked_again(yard: PodYard) -> None:
    host = yard.pod_hosts()[0]
    for verb in ("get", "create"):
        yard.cluster.faults.forbid(verb=verb, resource="pods/exec")
    with pytest.raises(ClusterRefused, match="get and create on pods/exec"):
        run(host, "true")


def test_a_role_without_pods_is_refused_and_says_which_rights_it_needs(yard: PodYard) -> None:
    yard.cluster.faults.forbid(verb="list", resource="pods")
    with pytest.raises(ClusterRefused, match="get and list on pods"):
        run(yard.pod_hosts()[0], "true")


def test_expired_credentials_are_refused_and_say_what_to_renew(yard: PodYard) -> None:
    yard.cluster.faults.expire_credentials()
    with pytest.raises(ClusterRefused, match="renew the kubeconfig"):
        run(yard.pod_hosts()[0], "true")


@pytest.mark.parametrize(
    ("change", "says"),
    [({"context": "production"}, "set cluster.context"), ({"kubeconfig": "/no/kubeconfig"}, "see cluster.kubeconfig")],
)
def test_a_context_or_kubeconfig_that_is_not_there_is_named(yard: PodYard, change: dict[str, str], says: str) -> None:
    kubectl = replace(yard.pods.kubectl, **change)
    host = replace(yard.pod_hosts()[0], pods=Pods(kubectl, SELECTOR))
    with pytest.raises(ClusterRefused, match=says):
        run(host, "true")


def test_a_namespace_without_workers_is_said_with_the_selector(yard: PodYard) -> None:
    kubectl = Kubectl(namespace="elsewhere", kubeconfig=str(yard.cluster.kubeconfig))
    host = replace(yard.pod_hosts()[0], pods=Pods(kubectl, SELECTOR))
    with pytest.raises(PodGone, match="no pod has index 0 among app=bench in namespace elsewhere"):
        run(host, "true")


# --- jobs and files ---------------------------------------------------------------------------------------------------


def test_one_trainer_per_pod_whoever_asks(yard: PodYard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.job.CLAIM_SEC", 0.5)
    spec = JobSpec(command=Command(argv=("sleep", "60")), deadline_sec=60.0)
    slot, host = "/scratch/slot", yard.pod_hosts()[0]

    def operator(number: int) -> str:
        try:
            return Job(Agent(host), f"/scratch/race/{number}", slot=slot).start(spec).state.value
        except HostBusy:
            return "busy"

    with ThreadPoolExecutor(4) as pool:
        found = sorted(pool.map(operator, range(4)))
    assert found == ["busy", "busy", "busy", "running"]
    run(host, "pkill", "-KILL", "sleep")


def test_files_arrive_whole_over_streams_that_break_inside_them(yard: PodYard, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "big").write_bytes(content)
    agent = Agent(hasty(yard)[0])
    yard.cluster.faults.exec("tcp-reset", nth=4, after_stdin_bytes=1 << 20)
    assert push(agent, tmp_path / "there", "/scratch/files").came == ("big",)
    for nth, after in ((2, 1 << 20), (3, 1 << 19)):
        yard.cluster.faults.exec("close-1000-without-status", nth=nth, after_stdout_bytes=after)
    moved = pull(agent, "/scratch/files", tmp_path / "back")
    assert (tmp_path / "back" / "big").read_bytes() == content
    assert moved.byte_count == len(content), "what had come was asked for again"
    assert yard.cluster.faults.struck()["execs"] == 3


def test_a_full_disk_in_the_pod_is_said_as_such(tmp_path: Path) -> None:
    for yard in start(tmp_path, 1, disk_bytes=1 << 20):
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / "big").write_bytes(bytes(3 << 20))
        with pytest.raises(HostRefused, match="No space left on device"):
            push(Agent(yard.pod_hosts()[0]), tmp_path / "there", "/scratch/files")


def test_a_job_goes_on_while_the_api_server_is_away(yard: PodYard) -> None:
    host = hasty(yard)[0]
    job = Job(Agent(host), "/scratch/away/job")
    script = "until [ -e /scratch/away/go ]; do sleep 0.05; done; exit 7"
    job.start(JobSpec(command=Command(argv=("sh", "-c", script)), deadline_sec=60.0))
    yard.cluster.faults.server_gone()
    with pytest.raises(HostUnreachable):
        job.status()
    yard.cluster.faults.server_back()
    assert job.status().state is JobState.RUNNING
    run(host, "touch", "/scratch/away/go")
    assert job.watch(lambda _: None, every_sec=0.1, for_sec=30.0).exit_code == 7


# --- a run, struck at its start, in its middle and after its last byte ------------------------------------------------


def run_struck(yard: PodYard, strike: Callable[[dict[str, Any]], None]) -> dict[str, int]:
    """Three trials on three pods, each struck at another moment; how often each of them was begun."""
    ids = ("slow-start", "slow-middle", "success-then-lingers-last")
    yard.plan("slow start", "slow middle", "success-then-lingers last", workers=PODS)
    ledger, moments = Ledger(yard.run_folder / LEDGER_FILE), ("ledger", "started", "succeeded")

    def reached(trial_id: str, moment: str) -> bool:
        if moment != "ledger":
            return bool(yard.noted(moment, trial_id))
        return bool(Ledger(ledger.path).entries[trial_id].attempts)

    with yard.running(yard.pod_fleet(hosts=hasty(yard))):
        for trial_id, moment in zip(ids, moments, strict=True):
            wait_for(lambda t=trial_id, m=moment: reached(t, m), f"{trial_id}: {moment}")
            strike(yard.pod_of(Ledger(ledger.path).entries[trial_id].attempts[-1].worker))
        yard.say_go()
    assert yard.ends() == dict.fromkeys(ids, "SUCCEEDED")
    assert yard.started_after_success() == []
    return {trial_id.rpartition("-")[2]: len(yard.noted("started", trial_id)) for trial_id in ids}


@pytest.mark.parametrize("fault", ["deleted", "evicted", "out of memory", "node lost"])
def test_a_pod_that_dies_costs_the_trial_it_ran_and_no_other(yard: PodYard, fault: str) -> None:
    faults = yard.cluster.faults

    def strike(pod: dict[str, Any]) -> None:
        if fault == "deleted":
            faults.delete_pod(pod["name"], grace=0)
        elif fault == "evicted":
            faults.evict(pod["name"])
        elif fault == "out of memory":
            faults.oom_kill(pod["name"])
        else:
            faults.lose_node(pod["node"])
            # Its replacement finds no place until a node is back: there is one for each pod.
            yard.cluster.wait_until(lambda: pod["name"] not in str(yard.live()), "the pod is given up")
            faults.find_node(pod["node"])

    starts = run_struck(yard, strike)
    assert starts["middle"] == 2
    assert starts["last"] == 1, "it was done, and what it wrote lay on the shared volume"
    assert starts["start"] <= 2


@pytest.mark.parametrize(
    "fault", ["streams cut", "streams frozen", "server gone", "black hole", "kubelet restarted", "kubectl killed"]
)
def test_losing_the_view_costs_nothing(yard: PodYard, fault: str) -> None:
    faults = yard.cluster.faults

    def strike(pod: dict[str, Any]) -> None:
        if fault == "streams cut":
            faults.end_streams(pod["node"], "close-1000-without-status")
        elif fault == "streams frozen":
            faults.end_streams(pod["node"], "freeze")
        elif fault == "server gone":
            faults.server_gone(seconds=1.0)
        elif fault == "black hole":
            faults.silence()
            faults.speak()
        elif fault == "kubelet restarted":
            faults.restart_kubelet(pod["node"], seconds=0.5)
        else:
            kill_kubectls()

    assert run_struck(yard, strike) == {"start": 1, "middle": 1, "last": 1}


def test_a_silent_node_gives_its_trial_to_another_pod_and_the_first_result_counts(yard: PodYard) -> None:
    """Nobody has noticed yet that the node is gone: its pod says Running and Ready, and nothing answers."""
    yard.plan("slow", workers=2)
    hosts = hasty(yard)[:2]
    with yard.running(yard.pod_fleet(hosts=hosts, limits=replace(LIMITS, lost_after_sec=3.0))):
        wait_for(lambda: yard.noted("started"), "the trial runs")
        worker = yard.noted("started")[0].split()[3]
        node = yard.pod_of(worker)["node"]
        yard.cluster.faults.silence_node(node)
        wait_for(lambda: len(yard.noted("started")) == 2, "another pod has begun it")
        yard.say_go(attempt=2)
        wait_for(lambda: yard.noted("succeeded"), "the second attempt is done")
        yard.cluster.faults.find_node(node)
    assert yard.ends() == {"slow": "SUCCEEDED"}
    assert yard.winner("slow")[0] == 2
    assert [line.split()[2] for line in yard.noted("succeeded")] == ["2"]


def test_a_new_operator_finds_what_runs_and_what_has_ended(yard: PodYard) -> None:
    yard.plan("slow a", "success-then-lingers b", workers=2)
    argv = [sys.executable, "-B", podyard.__file__, str(yard.folder), str(yard.cluster.kubeconfig), yard.label]
    with subprocess.Popen(argv, start_new_session=True) as operator:
        wait_for(lambda: yard.noted("started", "slow-a") and yard.noted("succeeded"), "one runs and one is done")
        os.killpg(operator.pid, signal.SIGKILL)
    assert [entry.end for entry in Ledger(yard.run_folder / LEDGER_FILE).entries.values()] == [None, None]
    yard.say_go()
    yard.pod_fleet(hosts=hasty(yard)[:2]).run()
    assert set(yard.ends().values()) == {"SUCCEEDED"}
    assert len(yard.noted("started")) == 2
