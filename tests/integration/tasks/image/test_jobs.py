"""One VM, several people and several works: a job is followed by whoever asked for the same, and stopped by its own."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote.hosts.host import HostError
from remote.hosts.local import me
from remote.image import vm_jobs
from remote.image.model_fetch import Fetch, find
from remote.jobs.agent import Agent
from remote.jobs.job import Job, JobState
from tasks.errors import ConfirmationRequired, UsageError
from tasks.image import jobs
from tests.support.hosts.local_fleet import LocalFleet

# A client of an engine that answers nothing, so that the job stays.
REQUEST = {"docker": ["sh", "-c", "exec sleep 300"], "environment": {}, "image": "i", "image_id": "sha256:i",
           "host": "fra.ocir.io", "path": "ns/team/x", "tag": "1.0.1", "user": "ns/me", "token_hosts": []}  # fmt: skip


@pytest.fixture
def agent(local: LocalFleet) -> Agent:
    return vm_jobs.agent_on(local.host())


@contextlib.contextmanager
def running(agent: Agent, request: dict[str, Any], verb: str = "push") -> Iterator[Job]:
    job = vm_jobs.new(agent, verb, f"{request['path']}-{request['tag']}", request)
    vm_jobs.start(job, {**request, "login": "/nowhere"}, deadline_sec=120.0)
    try:
        yield job
    finally:
        job.cancel()


OTHERS = {
    "a tag that begins with it": {"tag": "1.0"},
    "another registry": {"host": "iad.ocir.io"},
    "an image that was built anew": {"image_id": "sha256:other"},
    "another user": {"user": "ns/you"},
}


def test_a_push_is_followed_by_the_same_push_alone(agent: Agent) -> None:
    with running(agent, REQUEST):
        found = vm_jobs.running(agent)
        assert found is not None
        assert vm_jobs.does(found, "push", dict(reversed(REQUEST.items())))
        assert not vm_jobs.does(found, "build", REQUEST)
        for other in OTHERS.values():
            assert not vm_jobs.does(found, "push", {**REQUEST, **other}), other
        line = str(jobs.busy(found, "inv push"))
        assert f"of {me()}, which is other work; when that has ended, `inv push`" in line
        assert "`inv push --cancel`" in line
        with pytest.raises(HostError, match=r"busy with .*push-ns-team-x-1-0-1-.*, which is other work"):
            find(agent, Fetch(model="org/name", folder="/x"))


def test_two_fetches_of_one_model_are_two_works() -> None:
    one = Fetch(model="org/name", folder="/x")
    others = [
        Fetch(model="org/name", folder="/y"),
        Fetch(model="org/name", folder="/x", revision="v1"),
        Fetch(model="org/name", folder="/x", cache="/c"),
        Fetch(model="org/name", folder="/x", cache_here=Path("/c")),
    ]
    assert len({vm_jobs.digest_of(fetch.request) for fetch in [one, *others]}) == 5
    assert vm_jobs.digest_of(one.request) == vm_jobs.digest_of(Fetch(model="org/name", folder="/x").request)


def test_ones_own_job_is_stopped_and_another_verb_is_left_alone(
    agent: Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs.cancel(agent, "push")
    assert capsys.readouterr().out == "nothing runs on the VM\n"
    with running(agent, REQUEST) as job:
        with pytest.raises(UsageError, match=r"no build runs there, but .*; `inv push --cancel` stops it"):
            jobs.cancel(agent, "build")
        assert job.status().state is JobState.RUNNING
        jobs.cancel(agent, "push")
        assert job.status().state is JobState.ENDED
        assert capsys.readouterr().out == f"{job.folder}: stopped\n"


def test_a_colleagues_job_is_stopped_by_nobody_who_was_not_asked(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(agent, REQUEST) as job:
        monkeypatch.setattr(jobs, "me", lambda: "alice@elsewhere")
        with pytest.raises(ConfirmationRequired, match=r"was started by .*, not by alice@elsewhere: ask there"):
            jobs.cancel(agent, "push")
        assert job.status().state is JobState.RUNNING
        asked = []
        monkeypatch.setattr(jobs, "asks", lambda question: bool(asked.append(question)) or True)
        jobs.cancel(agent, "push")
        assert "was started by" in asked[0]
        assert job.status().state is JobState.ENDED
