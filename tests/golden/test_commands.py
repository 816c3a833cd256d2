"""Golden tests of the executed commands: for a job and a transfer on a host, and for a pod.

After a deliberate change: UPDATE_GOLDEN=1 pytest tests/golden
"""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from remote.hosts.command import Command
from remote.hosts.local import LocalHost
from remote.hosts.pods.host import PodHost
from remote.hosts.pods.kubectl import Kubectl
from remote.hosts.pods.pod_index import PodIndex, parse
from remote.jobs.job import Agent, Job, JobSpec, slot_path
from remote.jobs.transfer import pull, push
from tests.support.hosts.local_fleet import CuttableHost

GOLDEN = Path(__file__).with_name("commands")


def check_golden(name: str, text: str) -> None:
    golden = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_the_commands_for_a_job_and_a_transfer_are_the_golden_ones(tmp_path: Path) -> None:
    # Every name here needs quoting.
    commands: list[Command] = []
    here = LocalHost(name='it\'s a "worker"', workdir=str(tmp_path / 'it\'s a "worker" of $HOME'))
    host = CuttableHost(host=here, before=commands.append)
    agent = Agent(host)
    job = Job(agent, f"{host.workdir}/runs/r 1/base'line.1", slot=slot_path(host))
    job.start(JobSpec(command=Command(argv=("echo", "hello")), deadline_sec=60.0))
    job.watch(lambda _: None, progress="out/progress.json", interval_sec=0.5, duration_sec=60.0)
    assert job.log_tail() == ["hello"]
    job.cancel(grace_sec=5.0)
    assert agent.holder(slot_path(host)) is None
    pull(agent, job.folder, tmp_path / "here", only=("log.txt",))
    push(agent, tmp_path / "here", f"{host.workdir}/in put")

    lines = [command.render() for command in commands]
    assert all(shlex.split(line) == list(command.argv) for line, command in zip(lines, commands, strict=True))
    check_golden("job_and_transfer.txt", "".join(f"{normalize(line, tmp_path)}\n" for line in lines))


def normalize(line: str, folder: Path) -> str:
    line = line.replace(str(folder), "/srv").replace(shlex.quote(sys.executable), "python3")
    line = re.sub(r"\.onhost-[0-9a-f]{12}\b", ".onhost-DIGEST", line)
    line = re.sub(r'"stdin_bytes": [1-9][0-9]*', '"stdin_bytes": N', line)
    return re.sub(r"\b\d{5,}\b", "SIZE", line)


def test_the_commands_for_a_pod_are_the_golden_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[tuple[str, ...]] = []

    def run_program(argv: tuple[str, ...], **_: object) -> None:
        executed.append(argv)
        raise KeyboardInterrupt

    monkeypatch.setattr("remote.hosts.pods.kubectl.run_program", run_program)
    kubectl = Kubectl(namespace="qlora-fleet", context="it's mine", kubeconfig="/home/me/.kube/config")
    pods = PodIndex(kubectl, "app.kubernetes.io/name=bench,app.kubernetes.io/component=worker")
    with pytest.raises(KeyboardInterrupt):
        pods.all()
    host = PodHost(name="worker-0", index=0, pods=pods, workdir="/scratch/qlora-fleet", container="bench")
    (pod,) = parse("bench-0-x7k2p\t0\t2026-01-01T00:00:00Z\t\tn\t10.0.0.1\tRunning\t\tTrue\n")
    executed.append(host.exec_argv(pod))
    # The program's length is in the command; its content travels on standard input.
    text = "".join(re.sub(r"\b\d{4,6}\b", "SIZE", shlex.join(argv)) + "\n" for argv in executed)
    check_golden("kubectl.txt", text)
