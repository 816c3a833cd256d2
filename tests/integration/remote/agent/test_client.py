"""The engine's client on the VM: its output to a terminal and its exit, with fake clients."""

import subprocess
import sys
from pathlib import Path

import pytest

from remote.agent.build_vm import client
from remote.agent.build_vm.job import JobLog
from remote.agent.shared.errors import VmAgentError
from tests.support.machines.failures import raises_agent_error

LAYERS = """
import sys, time
assert sys.stdout.isatty()
write = lambda text: (sys.stdout.write(text), sys.stdout.flush())
write("The push refers to repository [fra.ocir.io/ns/repo]\\n")
write("0123456789ab: Preparing\\nba9876543210: Preparing\\n")
for megabytes in (1, 2, 3, 4):
    write(f"\\x1b[1A\\x1b[2K\\r0123456789ab: Pushing [==>   ]  {megabytes}MB/4MB\\r\\x1b[1B")
    time.sleep(0.1)
write("\\x1b[1A\\x1b[2K\\r0123456789ab: Pushed\\r\\x1b[1B")
write("\\x1b[1A\\x1b[2K\\rba9876543210: Layer already exists\\r\\x1b[1B")
"""


@pytest.fixture
def job_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobLog:
    monkeypatch.chdir(tmp_path)
    return JobLog()


def logged_lines(job_log: JobLog) -> list[str]:
    return [text for _, text in job_log.recent_lines]


def test_a_push_logs_the_number_of_bytes_sent(job_log: JobLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PROGRESS_INTERVAL_SEC", 0.05)
    code, lines = client.run_push(job_log, [sys.executable, "-c", LAYERS], {}, "fra.ocir.io")
    assert code == 0
    assert lines[0] == "The push refers to repository [fra.ocir.io/ns/repo]"
    logged = logged_lines(job_log)
    assert any(" of 4.0 MB, " in line and "0 of 1 layers" in line for line in logged), logged
    assert {"0123456789ab: Pushed", "ba9876543210: Layer already exists"} <= set(logged)
    assert not any("Preparing" in line or "\x1b" in line for line in logged)


def test_a_failed_push_returns_the_clients_lines_and_exit_code(job_log: JobLog) -> None:
    script = "echo 'The push refers to repository [x]'; echo 'denied: no such right' >&2; exit 3"
    code, lines = client.run_push(job_log, ["sh", "-c", script], {}, "fra.ocir.io")
    assert code == 3
    assert client.classify_failure(lines, code).kind == "unauthorized"


def test_a_stalled_push_is_reported_and_ended_like_a_broken_connection(
    job_log: JobLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "STALL_LOG_SEC", 0.5)
    monkeypatch.setattr(client, "STALL_TIMEOUT_SEC", 1.5)
    script = "echo '0123456789ab: Pushing [=>  ]  1MB/4MB'; exec sleep 300"
    code, lines = client.run_push(job_log, ["sh", "-c", script], {}, "fra.ocir.io")
    last = logged_lines(job_log)[-1]
    assert "fra.ocir.io" in last
    assert "`inv push --cancel`" in last
    assert client.classify_failure(lines, code).kind == "transient"


@pytest.mark.parametrize("to", ["", ">&2"])
def test_a_command_with_endless_output_is_killed_and_reported(to: str) -> None:
    with pytest.raises(VmAgentError, match=r"^`sh -c exec yes.* 16 MiB"):
        client.run_bounded(["sh", "-c", f"exec yes {to}"], {})


def test_an_endless_line_is_split(job_log: JobLog) -> None:
    code, lines = client.run_logged(job_log, ["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x"], {})
    assert code == 0
    assert max(map(len, lines)) <= client.MAX_LINE_BYTES


def failing_engine(complaint: str) -> list[str]:
    return ["sh", "-c", f"echo '{complaint}' >&2; exit 1"]


@pytest.mark.parametrize(("complaint", "kind", "token"), [
    ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
     "transient", "; .*sudo systemctl start docker"),
    ("Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
     "usage", r"sudo usermod -aG docker \$USER"),
    ("Error response from daemon: layer does not exist", "failed", "layer does not exist"),
])  # fmt: skip
def test_an_engine_error_differs_from_a_missing_image(complaint: str, kind: str, token: str) -> None:
    with raises_agent_error(kind, token):
        client.query(failing_engine(complaint), {}, "image", "inspect", "x")


@pytest.mark.parametrize("complaint", ["Error: No such image: x", "Error response from daemon: No such image: x"])
def test_a_missing_image_is_none(complaint: str) -> None:
    assert client.query(failing_engine(complaint), {}, "image", "inspect", "x") is None


def test_a_client_without_output_ends_at_its_deadline() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        client.run_bounded(["sleep", "300"], {}, timeout_sec=0.1)
