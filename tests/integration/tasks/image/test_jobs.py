"""Jobs of several users on one VM: the same request follows the running job; only its owner cancels it unasked."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invoke import Context

from remote.agent.jobs.jobs import claim_folder
from remote.hosts.command import Command, Secret
from remote.hosts.host_protocol import HostUnreachable
from remote.hosts.local import current_user
from remote.image import vm_jobs
from remote.image.engine import FolderInfo
from remote.image.plan import InsufficientSpace, SpaceNeed
from remote.image.vm_jobs import VmWork
from remote.jobs.job import Agent, Job, JobSpec, JobState, JobStatus
from tasks.errors import ConfirmationRequired, Interrupted, RetryableError, TaskFailed, UsageError
from tasks.image import build, vm_work
from tasks.image.model import Fetch
from tests.support.hosts.local_fleet import LocalFleet
from tests.support.machines.fake_engine import fake_engine

# A client of an engine that answers nothing, so that the job stays.
REQUEST = {"docker": ["sh", "-c", "exec sleep 300"], "image": "i", "image_id": "sha256:i",
           "host": "fra.ocir.io", "path": "ns/team/x", "tag": "1.0.1", "user": "ns/me", "token_hosts": []}  # fmt: skip


@pytest.fixture
def agent(local: LocalFleet) -> Agent:
    return vm_jobs.create_agent(local.host())


def work(request: dict[str, Any], verb: str = "push", *, deadline_sec: float = 120.0) -> VmWork:
    limits: dict[str, Any] = {"deadline_sec": deadline_sec, "logs": Path("/nowhere")}
    return VmWork(verb=verb, name="image", request=request, command=f"inv {verb}", **limits)


@contextlib.contextmanager
def running(agent: Agent, started: VmWork) -> Iterator[Job]:
    job = started.new_job(agent)
    started.start(job)
    try:
        yield job
    finally:
        job.cancel()


def test_no_room_names_what_a_prune_frees(local: LocalFleet) -> None:
    cache = [{"Size": 5_000_000_000, "InUse": False}]
    docker = fake_engine(local.folder, {"GET /system/df": {"LayersSize": 0, "Images": [], "BuildCache": cache}})
    root = FolderInfo(path="/data", exists=True, is_folder=True, kind="ext4", device=1, free_bytes=10, writable=True)
    need = SpaceNeed(folder=root, purpose="engine", need_bytes=20)
    settings: Any = SimpleNamespace(image=SimpleNamespace(client=docker), registry=SimpleNamespace(image=None))
    plan: Any = SimpleNamespace(needs=[need], data_root=root.path)
    with pytest.raises(InsufficientSpace, match=r"^/data: .* a prune frees 5\.0 GB; free some: `inv vm\.prune`"):
        build.check_space(settings, local.host(), plan)


@pytest.mark.parametrize("flags", [[], ["dry_run"], ["force"], ["cancel"]])
def test_a_build_that_is_cut_before_its_job_names_the_command_that_was_typed(
    context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    def cut(*_: object, **__: object) -> None:
        raise HostUnreachable("cut")

    monkeypatch.setattr(build, "resolve_tmpdir", cut)
    monkeypatch.setattr(vm_work, "cancel", cut)
    switches = {name: name in flags for name in ("dry_run", "cancel", "force")}
    with pytest.raises(RetryableError) as failed:
        build.build_image(context(), "/a b", **switches)
    command = " ".join(["inv build --tmpdir '/a b'", *(f"--{flag.replace('_', '-')}" for flag in flags)])
    assert failed.value.remedy == f"`{command}` retries"


@pytest.mark.parametrize(("cause", "end"), [(KeyboardInterrupt, Interrupted), (HostUnreachable, RetryableError)])
def test_work_that_another_command_has_started_is_followed(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, cause: type[Exception], end: type[TaskFailed]
) -> None:
    followed = []

    def follow(job: Job, *_: object) -> None:
        followed.append(job.folder)
        raise cause("cut")

    monkeypatch.setattr(vm_jobs, "follow", follow)
    monkeypatch.setattr("remote.jobs.job.CLAIM_SEC", 0.1)
    with running(agent, work(REQUEST)) as job:
        for is_seen in (True, False):  # False: it was started after the look at the slot
            if not is_seen:
                monkeypatch.setattr(vm_jobs, "running_job", lambda _: None)
            with pytest.raises(end, match="`inv push` "):
                vm_work.run(agent.host, work(REQUEST), lambda _: None)
    assert followed == [job.folder] * 2


def test_a_push_is_followed_only_by_the_same_push(agent: Agent) -> None:
    with running(agent, work(REQUEST)) as job:
        assert work(dict(reversed(REQUEST.items()))).is_done_by(job)
        assert not work(REQUEST, "build").is_done_by(job)
        for other in ({"tag": "1.0"}, {"host": "iad.ocir.io"}, {"image_id": "sha256:other"}, {"user": "ns/you"}):
            assert not work({**REQUEST, **other}).is_done_by(job), other
        with pytest.raises(RetryableError) as busy:
            vm_work.run(agent.host, work({**REQUEST, **other}), lambda _: pytest.fail("another push was prepared"))
        assert all(
            part in str(busy.value) for part in (job.folder, current_user(), "`inv push`", "`inv push --cancel`")
        )


@pytest.mark.parametrize("outcome", ["{}", "[]", '{"ok": 1}', '{"ok": false}', '{"ok": false, "kind": 3}'])
def test_a_malformed_outcome_is_never_a_success(agent: Agent, outcome: str) -> None:
    job = work({}).new_job(agent)
    files = {"progress.json": '{"lines": [["x"]], "count": "y"}', "outcome.json": outcome}
    job.start(JobSpec(command=Command(argv=("true",)), deadline_sec=60.0, files=files))
    with pytest.raises(HostUnreachable):
        vm_jobs.follow(job, lambda *line: pytest.fail(line[2]), lambda _: None)


def test_a_job_that_another_command_is_starting_is_followed(agent: Agent) -> None:
    job = work({}).new_job(agent)
    progress = {"count": 1, "lines": [[0.1, "fetch", "begins"]], "state": "1 of 2 GB"}
    watch, files = job.watch, {"outcome.json": '{"ok": true}', "progress.json": json.dumps(progress)}

    def watch_or_start(*arguments: Any, **limits: Any) -> JobStatus:
        if not Path(job.folder).exists():
            job.start(JobSpec(command=Command(argv=("true",)), deadline_sec=60.0, files=files))
            return JobStatus(state=JobState.WAITING)
        return watch(*arguments, **limits)

    job.watch = watch_or_start  # type: ignore[method-assign]
    lines, states = list[str](), list[str]()
    assert vm_jobs.follow(job, lambda *line: lines.append(line[2]), lambda _: None, states.append).facts == {"ok": True}
    assert (lines, set(states)) == (["begins"], {"1 of 2 GB"})


def test_a_job_at_its_deadline_says_so(agent: Agent) -> None:
    late = work(REQUEST, deadline_sec=1.0)
    job = late.new_job(agent)
    late.start(job)  # waits for its login
    with pytest.raises(vm_jobs.JobFailed, match="deadline") as failed:
        vm_jobs.follow(job, lambda *_: None, lambda _: None)
    assert failed.value.kind == "stopped"
    assert [path.name for path in Path(job.folder).iterdir() if path.is_fifo()] == []


def test_a_job_that_ends_before_it_reads_its_secret_reports_its_own_failure(agent: Agent) -> None:
    odd = work({"verb": "absent"})
    job = odd.new_job(agent)
    odd.start(job, Secret("hidden-words"))
    with pytest.raises(vm_jobs.JobFailed, match="ModuleNotFoundError") as failed:
        vm_jobs.follow(job, lambda *_: None, lambda _: None)
    assert failed.value.kind == "failed"


def test_a_job_that_nobody_starts_is_lost(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    job = work({}).new_job(agent)
    claim_folder(job.folder, {})
    monkeypatch.setattr(vm_jobs, "_MAX_START_SEC", 0.0)
    with pytest.raises(vm_jobs.JobFailed) as failed:
        vm_jobs.follow(job, lambda *_: None, lambda _: None)
    assert failed.value.kind == "lost"


def test_fetches_of_one_model_with_different_options_are_different_jobs() -> None:
    first = Fetch(model="org/name", folder="/x")
    others = [
        Fetch(model="org/name", folder="/y"),
        Fetch(model="org/name", folder="/x", revision="v1"),
        Fetch(model="org/name", folder="/x", cache="/c"),
    ]
    works = [work(asdict(fetch), "fetch") for fetch in (first, *others)]
    assert len({planned.digest for planned in works}) == 4


def test_a_user_s_own_job_is_cancelled_and_a_job_of_another_verb_is_not(
    agent: Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    vm_work.cancel(agent.host, "push")
    assert capsys.readouterr().out == "nothing runs on the VM\n"
    with running(agent, work(REQUEST)) as job:
        with pytest.raises(UsageError, match=r"; `inv push --cancel`"):
            vm_work.cancel(agent.host, "build")
        assert job.status().state is JobState.RUNNING
        vm_work.cancel(agent.host, "push")
        assert job.status().state is JobState.ENDED
        assert capsys.readouterr().out == f"{job.folder}: stopped\n"


def test_another_user_s_job_is_cancelled_only_after_confirmation(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(agent, work(REQUEST)) as job:
        monkeypatch.setattr(vm_work, "current_user", lambda: "alice@elsewhere")
        with pytest.raises(ConfirmationRequired, match=r"alice@elsewhere.*; .*`inv push --cancel`"):
            vm_work.cancel(agent.host, "push")
        assert job.status().state is JobState.RUNNING
        questions = []
        monkeypatch.setattr(vm_work, "confirm", lambda question: bool(questions.append(question)) or True)
        vm_work.cancel(agent.host, "push")
        assert job.folder in questions[0]
        assert job.status().state is JobState.ENDED
