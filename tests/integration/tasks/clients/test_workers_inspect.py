"""Tests of the inspection of model and data on all workers before a run, and of the errors when they differ."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from remote.hosts.command import Command
from remote.hosts.host_protocol import Completed, HostUnreachable, PermissionDenied
from tasks.clients.workers import bench_program
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.settings.layers import Settings, load
from tests.support.faults import Clock

Answer = Completed | Exception


@dataclass(kw_only=True)
class FakeHost:
    """Fake worker with a fixed answer. The real output of `python -m bench inspect` is not covered."""

    name: str
    answer: Answer
    silent_until_sec: float = 0.0
    workdir: str = "/nowhere"
    python: tuple[str, ...] = ("python3",)
    commands: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, command: Command, **_: Any) -> Completed:
        self.commands.append(command.argv)
        if Clock.now < self.silent_until_sec:
            raise HostUnreachable(f"{self.name}: TLS handshake timeout")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def report(model: str = "aa", data: str = "bb") -> Completed:
    document = {"model": {"path": "m", "sha256": model}, "data": {"path": "d.jsonl", "sha256": data}}
    return Completed(exit_code=0, stdout=json.dumps(document).encode())


def fleet(*answers: Answer) -> list[FakeHost]:
    return [FakeHost(name=f"worker-{index}", answer=answer) for index, answer in enumerate(answers)]


@pytest.fixture
def pods(context: Callable[[], Context], monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("INVOKE_FLEET_KIND", "pods")
    monkeypatch.setattr("tasks.clients.worker_queries.Event", Clock)
    monkeypatch.setattr("tasks.clients.worker_queries.monotonic", lambda: Clock.now)
    Clock.now = 0.0
    return load(context())


def test_the_report_is_that_of_the_first_worker(pods: Settings) -> None:
    assert bench_program(pods).inspect(fleet(report(), report(), report())) == json.loads(report().stdout)


@pytest.mark.parametrize(
    ("other", "error_type", "start"),
    [
        (report(model="cc"), ConfirmationRequired, "worker-1 and worker-0 .*model.path: m; "),
        (report(data="cc"), ConfirmationRequired, "worker-1 and worker-0 .*data.path: d.jsonl; "),
        (Completed(exit_code=2, stderr=b"d.jsonl: empty\n"), UsageError, "worker-1: d.jsonl: empty"),
        (Completed(exit_code=127), UsageError, "worker-1: exit 127: cd /workspace && "),
        (Completed(exit_code=137), RetryableError, "worker-1: exit 137: "),
        (PermissionDenied("worker-1: log in"), UsageError, "worker-1: log in, "),
        (HostUnreachable("worker-1: no route"), RetryableError, r"worker-1: no route \(.* 62 s\); "),
    ],
)
def test_one_worker_that_differs_fails_or_is_silent_ends_the_task(
    pods: Settings, other: Answer, error_type: type[TaskFailed], start: str
) -> None:
    with pytest.raises(error_type) as raised:
        bench_program(pods).inspect(fleet(report(), other, report()))
    assert isinstance(raised.value, error_type)
    assert re.match(start, str(raised.value))


def test_a_silent_worker_is_queried_again_with_one_line(pods: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """Check a restart of the API server, which silences 64 pods at once."""
    hosts = fleet(*[report()] * 64)
    for host in hosts:
        host.silent_until_sec = 30.0
    assert bench_program(pods).inspect(hosts) == json.loads(report().stdout)
    (line,) = capsys.readouterr().out.splitlines()
    assert "TLS handshake timeout" in line
    assert "60 s (fleet.lost_after_sec)" in line


def test_only_workers_on_this_machine_get_the_flag_profile(
    context: Callable[[], Context], pods: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INVOKE_FLEET_KIND", "local")
    monkeypatch.setenv("INVOKE_BENCH_PROFILE", "gpu")
    for settings, flag in ((load(context()), ("--profile", "gpu")), (pods, ("--data", pods.data.path))):
        hosts = fleet(report())
        bench_program(settings).inspect(hosts)
        assert hosts[0].commands[0][-4:] == (*flag, "--trials", "-")


def test_a_missing_gpu_or_workspace_is_one_line_before_anything_starts(inv: Any, project: Path) -> None:
    for start, environment in (
        ("worker-0: .*bench.profile", {"INVOKE_BENCH_PROFILE": "gpu", "CUDA_VISIBLE_DEVICES": ""}),
        ("fleet.workspace: /not/there: ", {"INVOKE_FLEET_WORKSPACE": "/not/there"}),
    ):
        completed = inv("bench", "--quick", env=environment)
        assert (completed.returncode, completed.stdout, completed.stderr.count("\n")) == (2, "", 1)
        assert re.match(start, completed.stderr)
    assert not (project / "results").exists()
