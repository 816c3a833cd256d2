"""The login of a job on the build VM: removed if the job does not start."""

from collections.abc import Callable
from pathlib import Path

import pytest
from invoke import Context

from remote.hosts.command import Secret
from remote.hosts.local import LocalHost
from remote.image import engine, vm_jobs
from remote.jobs.job import HostRefused
from tasks.image import jobs
from tasks.settings.load import load


def test_a_login_is_removed_if_the_vm_refuses_the_job(context: Callable[..., Context], tmp_path: Path) -> None:
    client = tmp_path / "docker"
    client.write_text('#!/bin/sh\ncat > "$2/config.json"\n')
    client.chmod(0o755)
    host = LocalHost(name="vm", workdir=str(tmp_path / "vm"))
    agent = vm_jobs.create_agent(host)
    assert vm_jobs.running_job(agent) is None
    (tmp_path / "vm" / "jobs").touch()  # no folder can be made there
    folder = engine.log_in(host, engine.Client(program=str(client)), "registry.example.com", "me", Secret("hidden"))
    assert (Path(folder) / "config.json").read_text() == "hidden"
    with pytest.raises(HostRefused):
        jobs.start(load(context()), vm_jobs.new_job(agent, "push", "image", {}), {}, folder)
    assert not Path(folder).exists()
