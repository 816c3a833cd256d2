"""Queries to several workers: a line while they take long, and none otherwise."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from remote.hosts.host_protocol import HostError, HostUnreachable
from remote.jobs.job import HostRefused
from tasks.cli import waiting
from tasks.cli.waiting import Wait
from tasks.clients import worker_queries
from tasks.errors import RetryableError

HOSTS: Any = [SimpleNamespace(name=f"worker-{index}") for index in range(3)]


def test_a_long_query_prints_whom_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    may_end, pulse = threading.Event(), Wait.pulse

    def end_after_first_line(wait: Wait) -> None:
        pulse(wait)
        may_end.set()

    monkeypatch.setattr(waiting, "PULSE_SEC", 0.0)
    monkeypatch.setattr(Wait, "pulse", end_after_first_line)

    def query(host: Any) -> str:
        if host is not HOSTS[0]:
            assert may_end.wait(30)
        return str(host.name)

    names = worker_queries.query_all(HOSTS, query, 1.0, activity="check of model and data")
    assert names == [host.name for host in HOSTS]
    line = capsys.readouterr().out.splitlines()[0]
    assert "waiting for worker-1 and 1 more of 3 workers" in line
    assert "check of model and data" in line


def test_a_short_query_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert worker_queries.query_all(HOSTS, lambda host: host.name, 1.0) == [host.name for host in HOSTS]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (HostRefused("worker-0: /w: No space left"), "correct that on the worker, then rerun the command"),
        (HostUnreachable("worker-0: timed out"), "check that the workers are up, then rerun the command"),
    ],
)
def test_the_remedy_says_whether_the_worker_answered(error: HostError, remedy: str) -> None:
    with pytest.raises(RetryableError) as raised, worker_queries.translate_host_errors():
        raise error
    assert raised.value.remedy == remedy
