"""One command, job and file transfer in a pod, with each fault of its stream at the first, a middle and the last byte.

Real kubectl against the tests' own cluster. Whole runs are in test_pods_runs.py.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote.hosts.command import Command
from remote.hosts.host_protocol import Completed, HostUnreachable
from remote.hosts.pods.host import PodHost
from remote.jobs.job import Agent, Job, JobSpec, JobState
from remote.jobs.transfer import pull, push
from tests.support.hosts.local_fleet import kill_kubectl_execs, wait_for
from tests.support.kubernetes.faults import ENDINGS
from tests.support.pods import EVICTION_SCALE, PodFleet, fixtures

PODS = 3
shared_fleet, pods = fixtures(PODS, toleration_scale=EVICTION_SCALE)


def run(host: PodHost, *argv: str, **options: Any) -> Completed:
    return host.run(Command(argv=argv), **{"timeout_sec": 60.0, **options})


# --- one command ------------------------------------------------------------------------------------------------------

OUTPUT = "begins\nends\n"
TOTAL_BYTES = 33 + 2 * 5 + len(OUTPUT) + 5 + len(f"0 exited {0:08x} {0:08x} {0:08x}")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_stream_with_any_ending_before_the_last_byte_is_lost_and_after_it_is_not(pods: PodFleet, ending: str) -> None:
    host = pods.pod_hosts()[0]
    # Only a stream that stays open must be given up early; on a busy machine kubectl starts slowly.
    stays_open = ending in ("freeze", "only-success-no-close")
    impatient = replace(host, silence_sec=3.0) if stays_open else host
    moments = (TOTAL_BYTES - 1,) if stays_open else (0, 33, TOTAL_BYTES // 2, TOTAL_BYTES - 1)

    def run_echo(host: PodHost) -> Completed:
        return run(host, "sh", "-c", "echo begins; sleep 0.05; echo ends")

    for after in moments:
        pods.cluster.faults.exec(ending, after_stdout_bytes=after)
        with pytest.raises(HostUnreachable, match="worker-1"):
            run_echo(impatient)
    pods.cluster.faults.exec(ending)  # all output is sent; only the Status is wrong or missing
    assert run_echo(host) == Completed(exit_code=0, stdout=OUTPUT.encode())
    assert pods.cluster.faults.exec_strikes() == len(moments) + 1


def test_a_command_that_leaves_megabytes_unread_ends_with_its_own_code(pods: PodFleet) -> None:
    host = pods.pod_hosts()[0]
    assert run(host, "sh", "-c", "exit 3", stdin=b"x" * (20 << 20)).exit_code == 3
    assert run(host, "head", "-c", "5", stdin=b"hello" * (4 << 20)).stdout == b"hello"


def test_a_killed_kubectl_leaves_nothing_running_in_the_pod(pods: PodFleet) -> None:
    host = pods.pod_hosts()[0]
    with pytest.raises(HostUnreachable, match="worker-1"):
        run(host, "sh", "-c", "echo here; sleep 77", on_stdout=lambda _: kill_kubectl_execs())
    pod = pods.pod_of("worker-1")["name"]
    wait_for(lambda: ["sleep", "77"] not in pods.cluster.processes(pod).values(), "the command is gone")


# --- jobs and files ---------------------------------------------------------------------------------------------------


def test_files_arrive_complete_over_streams_that_break_inside_them(pods: PodFleet, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "big").write_bytes(content)
    agent = Agent(pods.pod_hosts()[0])
    pods.cluster.faults.exec("tcp-reset", nth=4, after_stdin_bytes=1 << 20)
    assert push(agent, tmp_path / "there", "/scratch/files").transferred == ("big",)
    for nth, after in ((1, 1 << 20), (2, 1 << 19)):
        pods.cluster.faults.exec("close-1000-without-status", nth=nth, after_stdout_bytes=after)
    result = pull(agent, "/scratch/files", tmp_path / "back")
    assert (tmp_path / "back" / "big").read_bytes() == content
    assert result.byte_count == len(content), "received bytes were requested again"
    assert pods.cluster.faults.exec_strikes() == 3


def test_a_job_continues_while_the_api_server_is_down(pods: PodFleet) -> None:
    host = pods.pod_hosts()[0]
    job = Job(Agent(host), "/scratch/away/job")
    script = "until [ -e /scratch/away/go ]; do sleep 0.05; done; exit 7"
    job.start(JobSpec(command=Command(argv=("sh", "-c", script)), deadline_sec=60.0))
    pods.cluster.faults.stop_server()
    with pytest.raises(HostUnreachable):
        job.status()
    pods.cluster.faults.start_server()
    assert job.status().state is JobState.RUNNING
    run(host, "touch", "/scratch/away/go")
    assert job.watch(lambda _: None, interval_sec=0.1, duration_sec=30.0).exit_code == 7
