"""One command, one job, one file in a pod, and each fault of its stream: at the first, a middle and the last byte.

Real kubectl against the tests' own cluster. Whole runs are in test_pods_runs.py.
"""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote.cluster.errors import Forbidden, Misconfigured
from remote.hosts.command import Command
from remote.hosts.host import Completed, HostUnreachable
from remote.jobs.agent import Agent, HostRefused
from remote.jobs.job import HostBusy, Job, JobSpec, JobState
from remote.jobs.transfer import pull, push
from remote.pods.host import PodHost
from remote.pods.pod_index import PodGone, Pods
from tests.support.hosts.local_fleet import kill_kubectls, wait_for
from tests.support.kubernetes.faults import ENDINGS
from tests.support.pods import EVICTION, SELECTOR, PodFleet, fixtures, started

PODS = 3
shared_fleet, pods = fixtures(PODS, toleration_scale=EVICTION)


def run(host: PodHost, *argv: str, **options: Any) -> Completed:
    return host.run(Command(argv=argv), **{"timeout_sec": 60.0, **options})


# --- one command ------------------------------------------------------------------------------------------------------

SAYS = "begins\nends\n"
WHOLE = 33 + 2 * 5 + len(SAYS) + 5 + len(f"0 exited {0:08x} {0:08x} {0:08x}")


@pytest.mark.parametrize("how", ENDINGS)
def test_a_stream_ended_anyhow_before_the_last_byte_is_lost_and_after_it_is_not(pods: PodFleet, how: str) -> None:
    patient = pods.pod_hosts()[0]
    # Only a stream that stays open has to be given up; on a busy machine kubectl takes its time to start.
    hasty = replace(patient, silence_sec=5.0) if how in ("freeze", "only-success-no-close") else patient

    def says(host: PodHost) -> Completed:
        return run(host, "sh", "-c", "echo begins; sleep 0.05; echo ends")

    for after in (0, 33, WHOLE // 2, WHOLE - 1):
        pods.cluster.faults.exec(how, after_stdout_bytes=after)
        with pytest.raises(HostUnreachable, match="worker-1"):
            says(hasty)
    pods.cluster.faults.exec(how)  # all output is out, and only the Status is wrong or missing
    assert says(patient) == Completed(exit_code=0, stdout=SAYS.encode())
    assert pods.cluster.faults.struck()["execs"] == 5


def test_a_remote_that_leaves_megabytes_unread_ends_with_its_own_code(pods: PodFleet) -> None:
    host = pods.pod_hosts()[0]
    assert run(host, "sh", "-c", "exit 3", stdin=b"x" * (20 << 20)).exit_code == 3
    assert run(host, "head", "-c", "5", stdin=b"hello" * (4 << 20)).stdout == b"hello"


def test_input_of_megabytes_is_whole_and_so_is_output(pods: PodFleet) -> None:
    content = os.urandom(20 << 20)
    host = pods.pod_hosts()[0]
    assert run(host, "cat", stdin=io.BytesIO(content)).stdout == content
    run(host, "sh", "-c", "exec >&- 2>&-; cat > /scratch/copy", stdin=content)
    assert run(host, "cat", "/scratch/copy").stdout == content


def test_a_killed_kubectl_leaves_nothing_running_in_the_pod(pods: PodFleet) -> None:
    host = pods.pod_hosts()[0]
    with pytest.raises(HostUnreachable, match="broke before the command's end"):
        run(host, "sh", "-c", "echo here; sleep 77", on_stdout=lambda _: kill_kubectls())
    pod = pods.pod_of("worker-1")["name"]
    wait_for(lambda: ["sleep", "77"] not in pods.cluster.processes(pod).values(), "the command is gone")


# --- who may, and where -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verbs", "resource", "says"),
    [(("get", "create"), "pods/exec", "get and create on pods/exec"), (("list",), "pods", "get and list on pods")],
)
def test_a_role_without_a_right_is_refused_and_says_which_it_needs(
    pods: PodFleet, verbs: tuple[str, ...], resource: str, says: str
) -> None:
    for verb in verbs:
        pods.cluster.faults.forbid(verb=verb, resource=resource)
    with pytest.raises(Forbidden, match=says):
        run(pods.pod_hosts()[0], "true")


def test_expired_credentials_are_refused_and_say_what_to_renew(pods: PodFleet) -> None:
    pods.cluster.faults.expire_credentials()
    with pytest.raises(Misconfigured, match="renew the kubeconfig"):
        run(pods.pod_hosts()[0], "true")


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"context": "production"}, Misconfigured, "set cluster.context"),
        ({"kubeconfig": "/no/kubeconfig"}, Misconfigured, "see cluster.kubeconfig"),
        ({"namespace": "elsewhere"}, PodGone, "no pod has index 0 among app=bench in namespace elsewhere"),
    ],
)
def test_a_context_or_kubeconfig_that_is_not_there_or_a_namespace_without_workers_is_named(
    pods: PodFleet, change: dict[str, str], kind: type[Exception], says: str
) -> None:
    kubectl = replace(pods.pods.kubectl, **change)
    host = replace(pods.pod_hosts()[0], pods=Pods(kubectl, SELECTOR))
    with pytest.raises(kind, match=says):
        run(host, "true")


# --- jobs and files ---------------------------------------------------------------------------------------------------


def test_one_trainer_per_pod_whoever_asks(pods: PodFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.jobs.job.CLAIM_SEC", 0.5)
    spec = JobSpec(command=Command(argv=("sleep", "300")), deadline_sec=300.0)
    slot, host = "/scratch/slot", pods.pod_hosts()[0]

    def operator(number: int) -> str:
        try:
            return Job(Agent(host), f"/scratch/race/{number}", slot=slot).start(spec).state.value
        except HostBusy:
            return "busy"

    with ThreadPoolExecutor(4) as pool:
        found = sorted(pool.map(operator, range(4)))
    assert found == ["busy", "busy", "busy", "running"]
    run(host, "pkill", "-KILL", "sleep")


def test_files_arrive_whole_over_streams_that_break_inside_them(pods: PodFleet, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "big").write_bytes(content)
    agent = Agent(pods.pod_hosts()[0])
    pods.cluster.faults.exec("tcp-reset", nth=4, after_stdin_bytes=1 << 20)
    assert push(agent, tmp_path / "there", "/scratch/files").came == ("big",)
    for nth, after in ((1, 1 << 20), (2, 1 << 19)):
        pods.cluster.faults.exec("close-1000-without-status", nth=nth, after_stdout_bytes=after)
    moved = pull(agent, "/scratch/files", tmp_path / "back")
    assert (tmp_path / "back" / "big").read_bytes() == content
    assert moved.byte_count == len(content), "what had come was asked for again"
    assert pods.cluster.faults.struck()["execs"] == 3


def test_a_full_disk_in_the_pod_is_said_as_such(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("kubeconfig"):
        pytest.skip("a disk of one MiB needs the tests' own cluster, and --kubeconfig names another")
    with started(tmp_path, 1, pytestconfig, disk_bytes=1 << 20) as pods:
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / "big").write_bytes(bytes(3 << 20))
        with pytest.raises(HostRefused, match=r"/scratch/\S+: No space left on device"):
            push(Agent(pods.pod_hosts()[0]), tmp_path / "there", "/scratch/files")


def test_a_job_goes_on_while_the_api_server_is_away(pods: PodFleet) -> None:
    host = pods.pod_hosts()[0]
    job = Job(Agent(host), "/scratch/away/job")
    script = "until [ -e /scratch/away/go ]; do sleep 0.05; done; exit 7"
    job.start(JobSpec(command=Command(argv=("sh", "-c", script)), deadline_sec=60.0))
    pods.cluster.faults.server_gone()
    with pytest.raises(HostUnreachable):
        job.status()
    pods.cluster.faults.server_back()
    assert job.status().state is JobState.RUNNING
    run(host, "touch", "/scratch/away/go")
    assert job.watch(lambda _: None, every_sec=0.1, for_sec=30.0).exit_code == 7
