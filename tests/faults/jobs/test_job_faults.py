"""Detached jobs on a real host and their faults: killed starters, deadlines, orphans, a full disk."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remote.hosts.command import Command
from remote.hosts.host_protocol import HostUnreachable
from remote.jobs.job import Agent, HostBusy, HostRefused, Job, JobSpec, JobState, JobStatus
from tests.support.hosts.local_fleet import (
    PATIENCE_SEC,
    CuttableHost,
    LocalFleet,
    fill_disk,
    processes_under,
    supervisor_pid,
    wait_for,
)
from tests.support.machines.ssh_client import LOCAL_AND_SSH
from tests.support.machines.ssh_client import local_or_ssh as local_or_ssh
from tests.support.paths import ROOT

UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"


def shell(script: str, *, deadline_sec: float = 60.0, grace_sec: float = 5.0) -> JobSpec:
    return JobSpec(command=Command(argv=("sh", "-c", script)), deadline_sec=deadline_sec, grace_sec=grace_sec)


def job_in(local: LocalFleet, name: str = "job", *, slot: bool = False) -> Job:
    host = local.host()
    return Job(Agent(host), f"{host.workdir}/{name}", slot=f"{host.workdir}/slot" if slot else None)


@pytest.fixture
def job(local: LocalFleet) -> Job:
    return job_in(local)


def job_file(job: Job, name: str) -> Path:
    return Path(job.folder, name)


def ended(job: Job) -> JobStatus:
    status = job.watch(lambda _: None, interval_sec=0.05, duration_sec=PATIENCE_SEC)
    assert status.state is JobState.ENDED
    return status


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "exit_code", "number", "log"),
    [
        (("sh", "-c", "exit 7"), 7, None, []),
        (("sh", "-c", "kill -9 $$"), 137, 9, []),
        (("/no/such/program",), 127, None, ["/no/such/program: cannot be started: No such file or directory"]),
    ],
)
def test_the_end_marker_carries_the_commands_own_exit_code(
    job: Job, argv: tuple[str, ...], exit_code: int, number: int | None, log: list[str]
) -> None:
    job.start(JobSpec(command=Command(argv=argv), deadline_sec=60.0))
    status = ended(job)
    assert (status.exit_code, status.signal, status.why, job.log_tail()) == (exit_code, number, "exited", log)
    assert json.loads(job_file(job, "end.json").read_text())["exit_code"] == exit_code


def test_the_end_marker_is_written_after_all_the_commands_processes_are_gone(job: Job) -> None:
    job.start(shell("sleep 300 & setsid sleep 300 & exit 0"))
    assert ended(job).exit_code == 0
    assert processes_under(Path(job.folder)) == {}


@pytest.mark.parametrize("folder", [None, "else where"])
@pytest.mark.parametrize("name", ['it\'s a "$HOME" of\nsörts', "-n"])
def test_a_job_has_its_folder_environment_and_files_and_logs_its_output(
    local: LocalFleet, name: str, folder: str | None
) -> None:
    job, script = job_in(local, name, slot=True), 'pwd; echo "$GREETING"; cat "$0/trial.json"; echo oops >&2'
    if folder is not None:
        folder = str(local.folder / folder)
        Path(folder).mkdir()
    command = Command(argv=("sh", "-c", script, job.folder), environment={"GREETING": "it's me"}, folder=folder)
    job.start(JobSpec(command=command, deadline_sec=60.0, files={"trial.json": "{}\n"}))
    ended(job)
    assert job.log_tail() == [*(folder or job.folder).splitlines(), "it's me", "{}", "oops"]


# --- the process that started it --------------------------------------------------------------------------------------


@LOCAL_AND_SSH
def test_a_job_outlives_the_process_group_that_started_it(local: LocalFleet, job: Job) -> None:
    script = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from tests.faults.jobs.test_job_faults import LocalFleet, job_in, shell
from pathlib import Path
job_in(LocalFleet(Path({str(local.folder)!r}))).start(shell({UNTIL_GO!r}))
print("started", flush=True)
sys.stdin.read()
"""
    starter = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    with starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"started\n"
        os.killpg(starter.pid, signal.SIGKILL)
        starter.wait(PATIENCE_SEC)
    assert job.status().state is JobState.RUNNING
    job_file(job, "go").touch()
    assert ended(job).exit_code == 0


@LOCAL_AND_SSH
def test_watching_reports_progress_and_may_be_interrupted_and_resumed(local: LocalFleet, job: Job) -> None:
    job.start(shell(f"""echo '{{"step": 3}}' > progress.json; {UNTIL_GO}"""))
    wait_for(job_file(job, "progress.json").exists, "progress")

    def on_status(status: JobStatus) -> None:
        assert status.progress == {"step": 3}
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        job.watch(on_status, interval_sec=0.05)
    cut = Job(Agent(CuttableHost(host=local.host(), cuts=iter([30]))), job.folder)
    with pytest.raises(HostUnreachable):
        cut.watch(lambda _: None, interval_sec=0.05)
    assert job.status().state is JobState.RUNNING
    job_file(job, "go").touch()
    assert ended(job).exit_code == 0


# --- deadlines and cancels --------------------------------------------------------------------------------------------

# Ignores SIGINT and SIGTERM, with a child in its group that ignores them too, and children in their own sessions.
IGNORES_SIGNALS = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
open(f"deaf.{os.getpid()}", "w").close()
time.sleep(300)
"""


def are_started(job: Job) -> bool:
    return len(list(Path(job.folder).glob("deaf.*"))) == 4


def test_a_job_that_ignores_its_deadline_is_killed_with_all_its_descendants(job: Job) -> None:
    command = Command(argv=(sys.executable, "-I", "-S", "-c", IGNORES_SIGNALS))
    job.start(JobSpec(command=command, deadline_sec=3.0, grace_sec=0.2))
    status = ended(job)
    assert (status.why, status.exit_code, status.signal) == ("deadline", 137, 9)
    assert are_started(job)
    assert processes_under(Path(job.folder)) == {}


@pytest.mark.parametrize(("why", "exit_code"), [("deadline", 5), ("terminated", 5), ("cancelled", 42)])
def test_a_job_may_choose_its_exit_code_at_each_end(job: Job, why: str, exit_code: int) -> None:
    """At its deadline and by the host it gets SIGTERM, by a cancel SIGINT."""
    # Long enough for a busy machine to start the shell, which has to set its traps first.
    deadline_sec = 2.0 if why == "deadline" else 60.0
    script = "trap 'exit 42' INT; trap 'exit 5' TERM; touch up; while :; do sleep 0.02; done"
    job.start(shell(script, deadline_sec=deadline_sec))
    wait_for(job_file(job, "up").exists, "the traps")
    if why == "cancelled":
        assert job.cancel().state is JobState.ENDED
    elif why == "terminated":
        os.kill(supervisor_pid(Path(job.folder)), signal.SIGTERM)
    assert (ended(job).why, ended(job).exit_code) == (why, exit_code)


def test_cancelling_an_ended_or_absent_job_changes_nothing(job: Job) -> None:
    assert job.cancel().state is JobState.ABSENT
    job.start(shell("exit 7"))
    assert ended(job) == job.cancel()


def test_a_job_cancelled_while_it_waits_for_the_slot_never_starts(local: LocalFleet) -> None:
    first, second = job_in(local, "first", slot=True), job_in(local, "second", slot=True)
    first.start(shell(UNTIL_GO))
    with ThreadPoolExecutor(2) as pool:
        starting = pool.submit(second.start, shell("touch ran"))
        wait_for(job_file(second, "lock").exists, "the second job's claim")
        assert second.status().state is JobState.WAITING
        cancelling = pool.submit(second.cancel)
        wait_for(job_file(second, "cancel").exists, "the cancel mark")
        job_file(first, "go").touch()
        assert starting.result(PATIENCE_SEC).why == "cancelled"
        assert cancelling.result(PATIENCE_SEC).why == "cancelled"
    assert second.start(shell("touch ran")).why == "cancelled"
    assert not job_file(second, "ran").exists()


# --- once, and one at a time ------------------------------------------------------------------------------------------


def test_eight_starters_at_once_run_it_once(local: LocalFleet, job: Job) -> None:
    script = f"echo ran >> {shlex.quote(str(local.folder))}/ran; {UNTIL_GO}"
    ready = threading.Barrier(8)

    def start(_: int) -> JobState:
        job = job_in(local, slot=True)
        ready.wait()
        return job.start(shell(script)).state

    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(start, range(8)))
    assert set(states) <= {JobState.RUNNING, JobState.WAITING}
    assert JobState.RUNNING in states
    job_file(job, "go").touch()
    assert ended(job).exit_code == 0
    assert job.start(shell("exit 9")).exit_code == 0
    assert (local.folder / "ran").read_text() == "ran\n"


@pytest.mark.usefixtures("short_claim_timeout")
def test_the_slot_admits_one_of_six_jobs_and_names_it_to_the_others(local: LocalFleet) -> None:
    ready = threading.Barrier(6)

    def start(number: int) -> str | None:
        job = job_in(local, f"job {number}", slot=True)
        ready.wait()
        try:
            job.start(shell(f"touch ran; {UNTIL_GO}"))
        except HostBusy as busy:
            return busy.holder
        return None

    with ThreadPoolExecutor(6) as pool:
        holders = list(pool.map(start, range(6)))
    assert holders.count(None) == 1
    winner = job_in(local, f"job {holders.index(None)}", slot=True)
    agent = winner.agent
    assert agent.holder(f"{agent.host.workdir}/slot") == winner.folder
    assert [path.parent.name for path in Path(agent.host.workdir).glob("*/ran")] == [Path(winner.folder).name]
    assert set(holders) - {None} <= {winner.folder, ""}  # "" before it has written its name
    job_file(winner, "go").touch()
    ended(winner)
    assert agent.holder(f"{agent.host.workdir}/slot") is None

    loser = job_in(local, f"job {(holders.index(None) + 1) % 6}", slot=True)
    job_file(loser, "go").touch()
    loser.start(shell("exit 1"))
    assert ended(loser).exit_code == 0  # the spec of the first start counts


# --- a supervisor that is killed --------------------------------------------------------------------------------------


def test_a_command_dies_with_its_killed_supervisor_and_the_job_is_lost(local: LocalFleet) -> None:
    job = job_in(local, slot=True)
    job.start(shell("exec sleep 300"))
    os.kill(supervisor_pid(Path(job.folder)), signal.SIGKILL)
    wait_for(lambda: processes_under(Path(job.folder)) == {}, "the command's death")
    assert job.status().state is JobState.LOST
    assert job.start(shell("exit 0")).state is JobState.LOST
    after = job_in(local, "after", slot=True)
    after.start(shell("exit 0"))
    assert ended(after).exit_code == 0


@pytest.mark.usefixtures("short_claim_timeout")
def test_an_orphan_of_a_killed_supervisor_keeps_the_slot(local: LocalFleet) -> None:
    """The command dies with its supervisor; a child that it has forked may live on and use the GPU."""
    job = job_in(local, slot=True)
    job.start(shell("sleep 300 & touch up; wait"))
    wait_for(job_file(job, "up").exists, "the orphan to be")
    os.kill(supervisor_pid(Path(job.folder)), signal.SIGKILL)
    wait_for(lambda: job.status().state is JobState.LOST, "the loss")
    with pytest.raises(HostBusy) as busy:
        job_in(local, "after", slot=True).start(shell("touch ran"))
    assert busy.value.holder == job.folder
    assert not Path(local.host().workdir, "after", "ran").exists()

    local.kill_processes()
    after = job_in(local, "after", slot=True)
    after.start(shell("touch ran"))
    assert ended(after).exit_code == 0


# --- hosts that refuse ------------------------------------------------------------------------------------------------


def test_a_job_that_cannot_be_created_is_refused_with_the_reason(local: LocalFleet) -> None:
    agent = local.agent()
    assert agent.holder(f"{agent.host.workdir}/slot") is None
    Path(agent.host.workdir, "file").write_text("in the way")
    with pytest.raises(HostRefused, match="File exists"):
        Job(agent, f"{agent.host.workdir}/file/job").start(shell("exit 0"))
    with pytest.raises(HostRefused, match=r"'\.\./outside'"):
        Job(agent, f"{agent.host.workdir}/job").start(
            JobSpec(command=Command(argv=("true",)), deadline_sec=1.0, files={"../outside": ""})
        )
    assert not Path(agent.host.workdir, "outside").exists()
    assert Job(agent, f"{agent.host.workdir}/job").status().state is JobState.ABSENT


def test_a_truncated_program_is_not_installed(local: LocalFleet) -> None:
    class Short(CuttableHost):
        def run(self, command, *, stdin=None, **rest):  # type: ignore[no-untyped-def]
            return super().run(command, stdin=stdin[:1000] if isinstance(stdin, bytes) else stdin, **rest)

    job = Job(Agent(Short(host=local.host())), f"{local.host().workdir}/job")
    with pytest.raises(HostUnreachable, match="worker-1"):
        job.status()
    assert job_in(local).status().state is JobState.ABSENT


def test_a_job_on_a_full_disk_is_refused_and_one_that_fills_it_ends(local: LocalFleet, small_disk: Path) -> None:
    host = local.host(workdir=small_disk / "work")
    agent = Agent(host)
    job = Job(agent, f"{host.workdir}/job", slot=f"{host.workdir}/slot")
    job.start(shell("cat /dev/zero > filler; exit 0"))
    assert ended(job).exit_code == 0  # its end has reserved space
    fill_disk(small_disk)
    with pytest.raises(HostRefused, match="No space left on device"):
        Job(agent, f"{host.workdir}/another").start(shell("exit 0"))
    assert agent.holder(f"{host.workdir}/slot") is None
    with pytest.raises(HostRefused, match=f"{small_disk}/new: .*No space left on device"):  # our programs do not fit
        Agent(local.host(workdir=small_disk / "new")).holder("slot")
