"""What is really run on a host for a job and a transfer, word for word, where every name needs quoting.

After a deliberate change: UPDATE_GOLDEN=1 pytest tests/golden
"""

import os
import re
import shlex
import sys
from pathlib import Path

from remote.hosts.command import Command
from remote.hosts.local import LocalHost
from remote.jobs.agent import Agent
from remote.jobs.job import Job, JobSpec, slot_of
from remote.jobs.transfer import pull, push
from tests.support.hosts.local_fleet import CuttableHost

GOLDEN = Path(__file__).with_name("commands") / "job_and_transfer.txt"


def test_the_commands_for_a_job_and_a_transfer_are_the_golden_ones(tmp_path: Path) -> None:
    commands: list[Command] = []
    here = LocalHost(name='it\'s a "worker"', workdir=str(tmp_path / 'it\'s a "worker" of $HOME'))
    host = CuttableHost(host=here, before=commands.append)
    agent = Agent(host)
    job = Job(agent, f"{host.workdir}/runs/r 1/base'line.1", slot=slot_of(host))
    job.start(JobSpec(command=Command(argv=("echo", "hello")), deadline_sec=60.0))
    job.watch(lambda _: None, progress="out/progress.json", every_sec=0.5, for_sec=60.0)
    assert job.log_tail() == ["hello"]
    job.cancel(grace_sec=5.0)
    assert agent.holder(slot_of(host)) is None
    pull(agent, job.folder, tmp_path / "here", only=("log.txt",))
    push(agent, tmp_path / "here", f"{host.workdir}/in put")

    lines = [command.render() for command in commands]
    assert all(shlex.split(line) == list(command.argv) for line, command in zip(lines, commands, strict=True))
    text = "".join(f"{without_what_varies(line, tmp_path)}\n" for line in lines)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def without_what_varies(line: str, folder: Path) -> str:
    line = line.replace(str(folder), "/srv").replace(shlex.quote(sys.executable), "python3")
    line = re.sub(r"\.onhost-[0-9a-f]{12}\b", ".onhost-DIGEST", line)
    line = re.sub(r'"stdin_bytes": [1-9][0-9]*', '"stdin_bytes": N', line)
    return re.sub(r"\b\d{5,}\b", "SIZE", line)
