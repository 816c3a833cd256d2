"""The engine on the VM: its client's output and exit, and its API, with prepared answers."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from remote.agent.build_vm import client, job
from remote.agent.build_vm.job import JobLog
from tests.support.machines.failures import raises_agent_error
from tests.support.machines.fake_engine import fake_engine, requests_of

LAYER = "0123456789ab"
PUSHING = {"status": "Pushing", "id": LAYER}
PUSH = [
    {"status": "The push refers to repository [fra.ocir.io/ns/repo]"},
    {"status": "Preparing", "id": LAYER, "progressDetail": {}},
    *(
        {**PUSHING, "progressDetail": {"current": size, "total": 4_000_000}, "sleep": 0.1}
        for size in (10**6, 2 * 10**6)
    ),
    {"status": "Pushed", "id": LAYER, "progressDetail": {}},
    {"status": "Layer already exists", "id": "ba9876543210", "progressDetail": {}},
    {"aux": {"Tag": "1", "Digest": "sha256:x", "Size": 528}, "progressDetail": {}},
]


@pytest.fixture
def job_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobLog:
    monkeypatch.chdir(tmp_path)
    return JobLog()


def push(job_log: JobLog, folder: Path, answer: int | list[Any]) -> None:
    response = {"lines": answer} if isinstance(answer, list) else answer
    docker = fake_engine(folder, {"POST /images/fra.ocir.io/ns/repo/push?tag=1 ": response})
    login = base64.b64encode(b"ns/me:pass:word").decode()
    client.push_image(job_log, [docker], "fra.ocir.io/ns/repo", "1", login)


def test_a_push_shows_the_number_of_bytes_sent(
    job_log: JobLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(job, "PROGRESS_INTERVAL_SEC", 0.05)
    monkeypatch.setattr(job_log, "show", shown.append)
    push(job_log, tmp_path, PUSH)
    logged = [text for _, _, text in job_log.recent_lines]
    assert logged[0] == PUSH[0]["status"]
    assert any(" of 4.0 MB, " in line for line in shown), shown
    assert {f"{LAYER}: Pushed", "ba9876543210: Layer already exists"} <= set(logged)
    assert not any("Preparing" in line for line in logged)
    (header,) = re.findall(r"X-Registry-Auth: (\S+)", requests_of(str(tmp_path / "docker")))
    account = {"username": "ns/me", "password": "pass:word", "serveraddress": "fra.ocir.io"}
    assert json.loads(base64.urlsafe_b64decode(header)) == account


@pytest.mark.parametrize(("answer", "kind"), [
    ([PUSH[0], {"error": "denied: no such right", "errorDetail": {}}], "unauthorized"),
    ([{"error": "received unexpected HTTP status: 413 Request Entity Too Large"}], "usage"),
    ([{"error": "received unexpected HTTP status: 416 Requested Range Not Satisfiable"}], "transient"),
    ([PUSH[0], "not a message"], "transient"),
    (500, "failed"),
    (404, "failed"),
])  # fmt: skip
def test_a_failed_push_has_the_kind_of_the_engine_s_message(
    job_log: JobLog, tmp_path: Path, answer: int | list[Any], kind: str
) -> None:
    with raises_agent_error(kind):
        push(job_log, tmp_path, answer)


def test_a_stalled_push_is_reported_and_ended_like_a_broken_connection(
    job_log: JobLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "PROGRESS_INTERVAL_SEC", 0.05)
    monkeypatch.setattr(job, "STALL_LOG_SEC", 0.5)
    monkeypatch.setattr(client, "STALL_TIMEOUT_SEC", 1.5)
    with raises_agent_error("transient"):
        push(job_log, tmp_path, [PUSH[2], {"sleep": 300}])
    stage, text = job_log.recent_lines[-1][1:]
    assert stage == "stalled"
    assert "fra.ocir.io" in text
    assert "`inv push --cancel`" in text


def test_an_endless_line_is_split(job_log: JobLog) -> None:
    code, lines = client.run_logged(job_log, ["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x"])
    assert code == 0
    assert max(map(len, lines)) <= client.MAX_LINE_BYTES


def test_an_engine_error_differs_from_a_missing_image_and_from_an_engine_that_is_not_reached(tmp_path: Path) -> None:
    docker = [fake_engine(tmp_path, {"GET /images/r%3A5/x%3Ay/json": {"Id": "i"}, "GET /images/b/": 500})]
    assert client.inspect_image(docker, "r:5/x:y") == {"Id": "i"}
    assert client.inspect_image(docker, "a") is None
    with raises_agent_error("failed", "answer 500"):
        client.inspect_image(docker, "b")
    complaint = "Got permission denied while trying to connect to the Docker daemon socket at unix:///x"
    with raises_agent_error("usage", r"sudo usermod -aG docker \$USER"):
        client.inspect_image([fake_engine(tmp_path, complaint=complaint)], "x")
    docker = [fake_engine(tmp_path, system="exec sleep 300")]
    with raises_agent_error("transient", "GET /x: timed out"):
        client.request_engine(docker, "GET", "/x", timeout_sec=0.1).__enter__()
