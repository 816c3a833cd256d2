"""Tests of a command in a pod: only its end frame counts, and it ends with its caller.

kubectl is a stand-in here (see fake_kubectl.py); the program in the pod is the real one.
"""

import dataclasses
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remote.hosts.host_protocol import CommandTimedOut, HostUnreachable
from remote.hosts.pods.kubectl import Forbidden, Misconfigured, PodUnusable, Unreachable
from remote.hosts.pods.pod_index import PodGone
from tests.support.hosts.fake_worker import FakePod, pod_line
from tests.support.hosts.local_fleet import PATIENCE_SEC, LocalFleet


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePod]:
    monkeypatch.setenv("FAKE_KUBECTL_FOLDER", str(tmp_path))
    with LocalFleet(tmp_path):  # a leftover process of a command is an error
        yield FakePod(tmp_path)


def test_the_argv_of_kubectl_does_not_show_the_command(stand_in: FakePod) -> None:
    host = dataclasses.replace(stand_in.host, workdir="/scratch/qlora-fleet")
    assert len(" ".join(host.exec_argv(stand_in.pods.find(0)))) < 700


# Faults of the transport ----------------------------------------------------------------------------------------------

NOT_FOUND = '"python3": executable file not found in $PATH'
TWO_LINES = "echo begins; sleep 0.05; echo ends"


def reply_size(stand_in: FakePod) -> int:
    """Return the bytes of kubectl's output for TWO_LINES."""
    size = len(f"{'0' * 32}\n") + 2 * 5 + len("begins\nends\n") + 5 + len(f"0 exited {0:08x} {0:08x} {0:08x}")
    assert stand_in.run("sh", "-c", TWO_LINES).stdout == b"begins\nends\n"
    return size


def test_output_cut_at_any_byte_with_exit_0_is_lost_and_never_a_success(stand_in: FakePod) -> None:
    whole = reply_size(stand_in)
    for after in [0, 32, 33, 40, whole // 2, whole - 11, whole - 1]:
        stand_in.fault("cut", after)
        with pytest.raises(HostUnreachable, match="worker-0"):
            stand_in.run("sh", "-c", TWO_LINES)
    stand_in.fault("cut", whole)  # no byte is missing
    assert stand_in.run("sh", "-c", TWO_LINES).exit_code == 0


@pytest.mark.parametrize("fault", ["flip", "skip"])
def test_output_spoiled_on_its_way_is_lost_and_never_a_success(stand_in: FakePod, fault: str) -> None:
    whole = reply_size(stand_in)
    for after in [0, 33, 36, 45, whole - 30, whole - 1 if fault == "flip" else whole - 11]:
        stand_in.fault(fault, after)
        with pytest.raises((HostUnreachable, CommandTimedOut)):
            stand_in.run("sh", "-c", TWO_LINES, timeout_sec=1.5)


def test_a_frozen_stream_is_given_up_however_long_the_command_may_take(stand_in: FakePod) -> None:
    stand_in.host = dataclasses.replace(stand_in.host, silence_sec=1.0)
    stand_in.fault("freeze", 40)
    with pytest.raises(HostUnreachable, match="bench-0-abc for 1 s"):
        stand_in.run("sh", "-c", TWO_LINES)


def test_a_command_may_be_silent_for_longer_than_its_stream(stand_in: FakePod) -> None:
    stand_in.host = dataclasses.replace(stand_in.host, silence_sec=2.0)  # kubectl and Python start meanwhile
    assert stand_in.run("sh", "-c", "sleep 2.5; echo done").stdout == b"done\n"


def test_a_kubectl_that_stays_after_the_end_is_killed(stand_in: FakePod) -> None:
    stand_in.fault("linger")
    began = time.monotonic()
    assert stand_in.run("sh", "-c", TWO_LINES).stdout == b"begins\nends\n"
    assert time.monotonic() - began < 30  # the stand-in would stay for a minute


@pytest.mark.parametrize(
    ("stderr", "kind", "token"),
    [
        ("error: unable to upgrade connection: container not found", Unreachable, "container not found"),
        ('Error from server (Forbidden): pods "p" is forbidden', Forbidden, "administrator"),
        ("error: You must be logged in to the server (Unauthorized)", Misconfigured, "renew the kubeconfig"),
        (f"error: OCI runtime exec failed: exec failed: {NOT_FOUND}", PodUnusable, "fleet.pods.python"),
        ("", Unreachable, "no message"),
    ],
)
def test_an_error_of_kubectl_has_its_exception_and_remedy(
    stand_in: FakePod, stderr: str, kind: type[Exception], token: str
) -> None:
    stand_in.fault("error", stderr=stderr)
    with pytest.raises(kind, match=token) as caught:
        stand_in.run("true")
    assert type(caught.value) is kind
    assert "Unknown stream id" not in str(caught.value)


# Selection of the pod -------------------------------------------------------------------------------------------------


def test_of_two_pods_with_one_index_the_newest_ready_one_is_used(stand_in: FakePod) -> None:
    stand_in.list_pods(
        "a warning",
        pod_line("old", 0, created="2026-01-01T00:00:00Z"),
        pod_line("new", 0, created="2026-01-01T00:01:00Z"),
        pod_line("starting", 0, created="2026-01-01T00:02:00Z", ready="False"),
        pod_line("going", 0, created="2026-01-01T00:03:00Z", deleted="2026-01-01T00:04:00Z"),
        pod_line("other", 1, created="2026-01-01T00:05:00Z"),
    )
    assert stand_in.pods.find(0).name == "new"


@pytest.mark.parametrize(
    ("pods", "kind", "says"),
    [
        ([], PodGone, "no pod has index 0 among app=bench in namespace n"),
        ([pod_line("a", 0, deleted="2026-01-01T00:04:00Z")], PodGone, "a is Running, being deleted on node-1"),
        ([pod_line("a", 0, phase="Failed", reason="Evicted")], PodGone, "a is Evicted"),
        ([pod_line("a", 0, phase="Pending", node="", ready="")], PodGone, "a is Pending"),
        ([pod_line("a", 0, ready="False")], HostUnreachable, "a is Running, not Ready on node-1"),
    ],
)
def test_a_missing_pod_is_reported_with_the_reason(
    stand_in: FakePod, pods: list[str], kind: type[Exception], says: str
) -> None:
    stand_in.list_pods(*pods)
    with pytest.raises(kind, match=f"worker-0: {says}") as caught:
        stand_in.run("true")
    assert type(caught.value) is kind
    assert not (stand_in.folder / "fault.json").exists()


def test_many_commands_share_one_list_of_pods_which_is_refreshed_after_a_broken_stream(
    stand_in: FakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        stand_in.run("true")
    assert (stand_in.calls("get"), stand_in.calls("exec")) == (1, 3)
    stand_in.fault("cut", 0, times=100)
    for _ in range(3):
        with pytest.raises(HostUnreachable):
            stand_in.run("true")
    assert stand_in.calls("get") <= 2
    monkeypatch.setattr("remote.hosts.pods.pod_index._MIN_AGE_SEC", 0.0)
    (stand_in.folder / "pods.txt").write_text(pod_line("replacement", 0))
    with pytest.raises(HostUnreachable, match="replacement"):
        stand_in.run("true")


def test_a_replacement_is_found_by_the_next_caller_at_a_limited_rate(
    stand_in: FakePod, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.list_pods()
    for _ in range(3):
        with pytest.raises((PodGone, HostUnreachable)):
            stand_in.run("true")
    assert stand_in.calls("get") <= 2
    (stand_in.folder / "pods.txt").write_text(pod_line("replacement", 0))
    monkeypatch.setattr("remote.hosts.pods.pod_index._MIN_AGE_SEC", 0.0)
    assert stand_in.run("true").exit_code == 0


def test_concurrent_callers_share_one_failed_request(stand_in: FakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.hosts.pods.pod_index._MIN_AGE_SEC", PATIENCE_SEC)
    (stand_in.folder / "pods.txt").unlink()

    def run_command(_: int) -> None:
        with pytest.raises(HostUnreachable, match="worker-0: kubectl get pods: Unable to connect"):
            stand_in.run("true")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run_command, range(8)))
    assert stand_in.calls("get") == 1


def test_without_kubectl_the_error_names_it(stand_in: FakePod) -> None:
    (stand_in.folder / "kubectl").unlink()
    with pytest.raises(Misconfigured, match="install kubectl"):
        stand_in.run("true")
