"""Asking all workers for model and data before a run: what they must agree on, and how it ends when they do not."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from remote.hosts.command import Command
from remote.hosts.host import Completed, HostUnreachable, PermissionDenied
from tasks.clients.workers import inspect
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.settings.load import Settings, load

Answer = Completed | Exception


@dataclass(kw_only=True)
class ToldHost:
    """A worker that answers as it is told to. No process: what `python -m bench inspect` really says is not covered."""

    name: str
    answer: Answer
    silent_until_sec: float = 0.0
    workdir: str = "/nowhere"
    python: tuple[str, ...] = ("python3",)
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, command: Command, **_: Any) -> Completed:
        self.asked.append(command.argv)
        if Clock.now < self.silent_until_sec:
            raise HostUnreachable(f"{self.name}: TLS handshake timeout")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def said(model: str = "aa", data: str = "bb") -> Completed:
    document = {"model": {"path": "m", "sha256": model}, "data": {"path": "d.jsonl", "sha256": data}}
    return Completed(exit_code=0, stdout=json.dumps(document).encode())


def fleet(*answers: Answer) -> list[ToldHost]:
    return [ToldHost(name=f"worker-{index}", answer=answer) for index, answer in enumerate(answers)]


class Clock(threading.Event):
    """Stands for the end of the question: waiting on it moves the time, and takes none."""

    now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        Clock.now += timeout or 0.0
        return self.is_set()


@pytest.fixture
def pods(context: Callable[[], Context], monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("INVOKE_FLEET_KIND", "pods")
    monkeypatch.setattr("tasks.clients.worker_queries.Event", Clock)
    monkeypatch.setattr("tasks.clients.worker_queries.monotonic", lambda: Clock.now)
    Clock.now = 0.0
    return load(context())


def test_what_all_workers_have_is_what_the_first_one_said(pods: Settings) -> None:
    assert inspect(pods, fleet(said(), said(), said())) == json.loads(said().stdout)


@pytest.mark.parametrize(
    ("other", "kind", "words"),
    [
        (said(model="cc"), ConfirmationRequired, "worker-1 and worker-0 have different files at model.path: m; "),
        (said(data="cc"), ConfirmationRequired, "worker-1 and worker-0 have different files at data.path: d.jsonl; "),
        (Completed(exit_code=2, stderr=b"d.jsonl: empty\n"), UsageError, "worker-1: d.jsonl: empty"),
        (Completed(exit_code=127), UsageError, "worker-1: exit 127: cd /workspace && "),
        (Completed(exit_code=137), RetryableError, "worker-1: exit 137: "),
        (PermissionDenied("worker-1: log in"), UsageError, "worker-1: log in, then type the same again"),
        (
            HostUnreachable("worker-1: no route"),
            RetryableError,
            "worker-1: no route (asked for 62 s); check that the workers are up, ",
        ),
    ],
)
def test_one_worker_that_differs_complains_or_is_silent_ends_the_task(
    pods: Settings, other: Answer, kind: type[TaskFailed], words: str
) -> None:
    with pytest.raises(kind) as ended:
        inspect(pods, fleet(said(), other, said()))
    assert type(ended.value) is kind
    assert str(ended.value).startswith(words)


def test_a_worker_that_is_silent_for_a_while_is_asked_again_and_said_so_once(
    pods: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """An API server that restarts, for 64 pods at once."""
    hosts = fleet(*[said()] * 64)
    for host in hosts:
        host.silent_until_sec = 30.0
    assert inspect(pods, hosts) == json.loads(said().stdout)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(": TLS handshake timeout; asked again, for up to 60 s (fleet.lost_after_sec)")


def test_only_workers_on_this_machine_are_asked_for_the_profiles_gpu(
    context: Callable[[], Context], pods: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INVOKE_FLEET_KIND", "local")
    monkeypatch.setenv("INVOKE_BENCH_PROFILE", "gpu")
    for settings, question in ((load(context()), ("--profile", "gpu")), (pods, ("--data", pods.data.path))):
        hosts = fleet(said())
        inspect(settings, hosts)
        assert hosts[0].asked[0][-4:] == (*question, "--trials", "-")


def test_a_bench_in_an_older_image_is_asked_without_the_trials(pods: Settings) -> None:
    class OldHost(ToldHost):
        def run(self, command: Command, **_: Any) -> Completed:
            self.asked.append(command.argv)
            if "--trials" in command.argv:
                why = b"python -m bench: unrecognized arguments: --trials -; `python -m bench --help` says more"
                return Completed(exit_code=2, stderr=why)
            return said()

    host = OldHost(name="worker-0", answer=said())
    assert inspect(pods, [host]) == json.loads(said().stdout)
    assert len(host.asked) == 2


def test_profile_gpu_without_a_gpu_is_refused_before_anything_starts(inv: Any, project: Path) -> None:
    ended = inv("bench", "--quick", env={"INVOKE_BENCH_PROFILE": "gpu", "CUDA_VISIBLE_DEVICES": ""})
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("worker-0: profile gpu needs a")
    assert "bench.profile" in ended.stderr
    assert not (project / "results").exists()


def test_a_workspace_that_is_not_there_is_named_as_the_setting(inv: Any) -> None:
    ended = inv("bench", "--quick", env={"INVOKE_FLEET_WORKSPACE": "/not/there"})
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "fleet.workspace: /not/there: no such folder; name another, or null for the project's own\n"
