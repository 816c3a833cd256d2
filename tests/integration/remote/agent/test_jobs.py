"""Tests of the host agent, which runs on other versions of Python without other packages."""

import os
import re
from pathlib import Path

import pytest

from remote.agent.shared.files import MAX_NAME_BYTES, join_inside, partial_path
from remote.agent.shared.wire import RequestRefused
from remote.hosts.bundle import Program
from remote.hosts.command import Command
from remote.hosts.local import LocalHost
from remote.jobs.job import Agent, Job, JobSpec, JobState
from remote.jobs.transfer import pull, push
from tests.support.hosts.local_fleet import PATIENCE_SEC, LocalFleet
from tests.support.hosts.pythons import other_python


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_jobs_run_and_files_are_transferred_under_another_python(tmp_path: Path, version: str) -> None:
    host = LocalHost(name="old", workdir=str(tmp_path / "work"), python=(other_python(version),))
    agent, content = Agent(host), os.urandom(3 << 20)
    job = Job(agent, f"{host.workdir}/job", slot=f"{host.workdir}/slot")
    job.start(JobSpec(command=Command(argv=("sh", "-c", "echo hello; exit 7")), deadline_sec=60.0))
    status = job.watch(lambda _: None, interval_sec=0.05, duration_sec=PATIENCE_SEC)
    assert (status.state, status.exit_code, job.log_tail()) == (JobState.ENDED, 7, ["hello"])
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "large").write_bytes(content)
    assert push(agent, tmp_path / "here", str(tmp_path / "there")).transferred == ("large",)
    assert pull(agent, str(tmp_path / "there"), tmp_path / "back").transferred == ("large",)
    assert (tmp_path / "back" / "large").read_bytes() == content


def test_a_new_version_is_installed_in_addition_to_an_old_one(local: LocalFleet) -> None:
    agent = local.agent()
    Job(agent, f"{agent.host.workdir}/job").status()
    agent.program = Program(texts={**agent.program.texts, "remote/new.py": ""})
    Job(agent, f"{agent.host.workdir}/job").status()
    assert len(list((local.folder / "hosts" / "worker-1").glob(".onhost-*"))) == 2
    compiled = [*(local.folder / "hosts").rglob("__pycache__")]
    assert compiled == [], "a compiled copy truncated by a full disk breaks every later call"


@pytest.mark.parametrize("name", ["a", "a/b", "./a", "a/./b", "a b", "..a", "a..", "...", "-"])
def test_a_path_below_the_folder_is_accepted(name: str) -> None:
    assert str(join_inside("/root", name)).startswith("/root/")


@pytest.mark.parametrize("name", ["", ".", "..", "/", "/a", "../a", "a/..", "a/../../b", "//a", "a\0b"])
def test_a_path_that_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(RequestRefused, match=re.escape(repr(name))):
        join_inside("/root", name)


@pytest.mark.parametrize("name", ["a", "n" * MAX_NAME_BYTES, "日" * (MAX_NAME_BYTES // 3)])
@pytest.mark.parametrize("tag", ["", "0123456789abcdef"])
def test_a_partial_file_has_a_valid_name(tmp_path: Path, name: str, tag: str) -> None:
    part = Path(partial_path(tmp_path / name, tag))
    part.touch()
    assert (part.parent, part.name[0], part.suffix) == (tmp_path, ".", ".part")
    assert str(part) != partial_path(tmp_path / (name[:-1] + "b"), tag)
