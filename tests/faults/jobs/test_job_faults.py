"""Detached jobs on a real host, and what may befall them: starters that die, deadlines, orphans, a full disk."""

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
from remote.hosts.host import HostUnreachable
from remote.jobs.agent import Agent, HostRefused
from remote.jobs.job import HostBusy, Job, JobSpec, JobState, JobStatus
from tests.support.hosts.local_fleet import (
    PATIENCE_SEC,
    CuttableHost,
    LocalFleet,
    processes_under,
    supervisor_of,
    wait_for,
)
from tests.support.machines.ssh_client import local_or_ssh as local_or_ssh
from tests.support.paths import ROOT

UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"


def shell(script: str, *, deadline_sec: float = 60.0, grace_sec: float = 5.0) -> JobSpec:
    return JobSpec(
        command=Command(argv=("sh", "-c", script)), deadline_sec=deadline_sec, grace_sec=grace_sec, heartbeat_sec=0.05
    )


def python(script: str, *, deadline_sec: float = 60.0, grace_sec: float = 5.0) -> JobSpec:
    command = Command(argv=(sys.executable, "-I", "-S", "-c", script))
    return JobSpec(command=command, deadline_sec=deadline_sec, grace_sec=grace_sec, heartbeat_sec=0.05)


def job_in(local: LocalFleet, name: str = "job", *, slot: bool = False) -> Job:
    host = local.host()
    return Job(Agent(host), f"{host.workdir}/{name}", slot=f"{host.workdir}/slot" if slot else None)


@pytest.fixture
def job(local: LocalFleet) -> Job:
    return job_in(local)


def place(job: Job, name: str) -> Path:
    return Path(job.folder, name)


def ended(job: Job) -> JobStatus:
    status = job.watch(lambda _: None, every_sec=0.05, for_sec=PATIENCE_SEC)
    assert status.state is JobState.ENDED
    return status


# --- the end it comes to ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "exit_code", "number"),
    [("exit 0", 0, None), ("exit 7", 7, None), ("kill -9 $$", 137, 9), ("kill -TERM $$", 143, 15)],
)
def test_the_end_marker_carries_the_commands_own_exit_code(
    job: Job, script: str, exit_code: int, number: int | None
) -> None:
    job.start(shell(script))
    status = ended(job)
    assert (status.exit_code, status.signal, status.why) == (exit_code, number, "exited")
    assert json.loads(place(job, "end.json").read_text())["exit_code"] == exit_code


def test_a_program_that_is_not_there_ends_with_127_and_says_so_in_the_log(job: Job) -> None:
    job.start(JobSpec(command=Command(argv=("/no/such/program",)), deadline_sec=60.0))
    assert ended(job).exit_code == 127
    assert job.log_tail() == ["/no/such/program: cannot be started: No such file or directory"]


def test_the_end_marker_is_written_after_everything_the_command_left_behind_is_gone(job: Job) -> None:
    job.start(shell("sleep 300 & setsid sleep 300 & exit 0"))
    assert ended(job).exit_code == 0
    assert processes_under(Path(job.folder)) == {}


def test_a_job_runs_in_its_folder_with_its_environment_and_files_and_keeps_what_it_prints(job: Job) -> None:
    script = 'pwd; echo "$GREETING"; cat trial.json; echo oops >&2'
    command = Command(argv=("sh", "-c", script), environment={"GREETING": "it's me"})
    job.start(JobSpec(command=command, deadline_sec=60.0, files={"trial.json": "{}\n"}))
    ended(job)
    assert job.log_tail() == [job.folder, "it's me", "{}", "oops"]


def test_a_job_may_run_in_another_folder(local: LocalFleet, job: Job) -> None:
    elsewhere = local.folder / "else where"
    elsewhere.mkdir()
    job.start(JobSpec(command=Command(argv=("pwd",), folder=str(elsewhere)), deadline_sec=60.0))
    ended(job)
    assert job.log_tail() == [str(elsewhere)]


@pytest.mark.parametrize("name", ["with space", "qu'ote", 'double"quote', "dollar$HOME", "ünï-cödé", "new\nline", "-n"])
def test_job_folders_may_have_odd_names(local: LocalFleet, name: str) -> None:
    job = job_in(local, name, slot=True)
    job.start(shell("echo here > mark"))
    assert ended(job).exit_code == 0
    assert place(job, "mark").read_text() == "here\n"


# --- surviving whoever started it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_job_outlives_the_process_that_started_it(local: LocalFleet, job: Job, whole_group: bool) -> None:
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
        (os.killpg if whole_group else os.kill)(starter.pid, signal.SIGKILL)
        starter.wait(PATIENCE_SEC)
    assert job.status().state is JobState.RUNNING
    place(job, "go").touch()
    assert ended(job).exit_code == 0


def test_the_heart_beats_while_the_command_runs(job: Job) -> None:
    job.start(shell(UNTIL_GO))
    beats: set[str] = set()

    def look() -> bool:
        beats.add(place(job, "heartbeat").read_text())
        return len(beats - {""}) >= 3

    wait_for(look, "three different heartbeats")
    assert job.status().heartbeat_age_sec is not None, "no look falls between two beats"
    place(job, "go").touch()
    ended(job)


def test_watching_tells_progress_and_may_be_broken_off_and_taken_up_again(local: LocalFleet, job: Job) -> None:
    job.start(shell(f"""echo '{{"step": 3}}' > progress.json; {UNTIL_GO}"""))
    wait_for(place(job, "progress.json").exists, "progress")

    def hear(status: JobStatus) -> None:
        assert status.progress == {"step": 3}
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        job.watch(hear, every_sec=0.05)
    cut = Job(Agent(CuttableHost(host=local.host(), cuts=iter([30]))), job.folder)
    with pytest.raises(HostUnreachable):
        cut.watch(lambda _: None, every_sec=0.05)
    assert job.status().state is JobState.RUNNING
    place(job, "go").touch()
    assert ended(job).exit_code == 0


def test_a_stream_that_is_lost_with_success_reported_is_not_an_absent_job(local: LocalFleet, job: Job) -> None:
    job.start(shell(UNTIL_GO))
    silent = Job(Agent(CuttableHost(host=local.host(), garble=lambda *_: b"")), job.folder)
    with pytest.raises(HostUnreachable):
        silent.status()
    place(job, "go").touch()
    ended(job)


# --- ends imposed on it -----------------------------------------------------------------------------------------------

# Deaf to the polite signals, with a deaf child in its group and one that has escaped into a session of its own.
DEAF = """
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


def deaf_are_up(job: Job) -> bool:
    return len(list(Path(job.folder).glob("deaf.*"))) == 4


def test_at_its_deadline_a_job_is_told_to_end_and_may_still_say_how(job: Job) -> None:
    job.start(shell("trap 'exit 5' TERM; while :; do sleep 0.02; done", deadline_sec=0.3))
    status = ended(job)
    assert (status.why, status.exit_code) == ("deadline", 5)


def test_a_job_deaf_to_its_deadline_is_killed_with_all_its_descendants(job: Job) -> None:
    job.start(python(DEAF, deadline_sec=1.0, grace_sec=0.2))
    status = ended(job)
    assert (status.why, status.exit_code, status.signal) == ("deadline", 137, 9)
    assert deaf_are_up(job)
    assert processes_under(Path(job.folder)) == {}


def test_cancel_interrupts_first(job: Job) -> None:
    job.start(shell("trap 'exit 42' INT; trap 'exit 43' TERM; touch up; while :; do sleep 0.02; done"))
    wait_for(place(job, "up").exists, "the traps")
    status = job.cancel()
    assert (status.state, status.why, status.exit_code) == (JobState.ENDED, "cancelled", 42)


def test_cancel_kills_what_is_deaf_with_all_its_descendants(job: Job) -> None:
    job.start(python(DEAF, grace_sec=0.1))
    wait_for(lambda: deaf_are_up(job), "four deaf processes")
    status = job.cancel()
    assert (status.why, status.signal) == ("cancelled", 9)
    assert processes_under(Path(job.folder)) == {}


def test_a_termination_by_the_host_itself_is_told_from_a_cancel(job: Job) -> None:
    job.start(shell("trap 'exit 143' TERM; touch up; while :; do sleep 0.02; done"))
    wait_for(place(job, "up").exists, "the trap")
    os.kill(supervisor_of(Path(job.folder)), signal.SIGTERM)
    assert (ended(job).why, ended(job).exit_code) == ("terminated", 143)


def test_cancelling_what_has_ended_or_never_was_changes_nothing(job: Job) -> None:
    assert job.cancel().state is JobState.ABSENT
    job.start(shell("exit 7"))
    ended(job)
    assert (job.cancel().exit_code, job.cancel().why) == (7, "exited")


def test_a_job_cancelled_while_it_waits_for_its_turn_never_begins(local: LocalFleet) -> None:
    first, second = job_in(local, "first", slot=True), job_in(local, "second", slot=True)
    first.start(shell(UNTIL_GO))
    with ThreadPoolExecutor(2) as pool:
        starting = pool.submit(second.start, shell("touch ran"))
        wait_for(place(second, "lock").exists, "the second job's claim")
        assert second.status().state is JobState.WAITING
        cancelling = pool.submit(second.cancel)
        wait_for(place(second, "cancel").exists, "the cancel mark")
        place(first, "go").touch()
        assert starting.result(PATIENCE_SEC).why == "cancelled"
        assert cancelling.result(PATIENCE_SEC).why == "cancelled"
    assert second.start(shell("touch ran")).why == "cancelled"
    assert not place(second, "ran").exists()


# --- once, and one at a time ------------------------------------------------------------------------------------------


def test_starting_twice_runs_once(local: LocalFleet, job: Job) -> None:
    job.start(shell(f"echo ran >> {shlex.quote(str(local.folder))}/ran; {UNTIL_GO}"))
    assert job.start(shell("exit 9")).state is JobState.RUNNING
    place(job, "go").touch()
    ended(job)
    assert job.start(shell("exit 9")).exit_code == 0
    assert (local.folder / "ran").read_text() == "ran\n"


def test_eight_starters_at_once_run_it_once(local: LocalFleet, job: Job) -> None:
    script = f"echo ran >> {shlex.quote(str(local.folder))}/ran; {UNTIL_GO}"
    ready = threading.Barrier(8)

    def begin(_: int) -> JobState:
        job = job_in(local, slot=True)
        ready.wait()
        return job.start(shell(script)).state

    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(begin, range(8)))
    assert set(states) <= {JobState.RUNNING, JobState.WAITING}
    assert JobState.RUNNING in states
    place(job, "go").touch()
    assert ended(job).exit_code == 0
    assert (local.folder / "ran").read_text() == "ran\n"


@pytest.mark.usefixtures("no_patience")
def test_the_slot_admits_one_of_six_jobs_and_names_it_to_the_others(local: LocalFleet) -> None:
    ready = threading.Barrier(6)

    def begin(number: int) -> str | None:
        job = job_in(local, f"job {number}", slot=True)
        ready.wait()
        try:
            job.start(shell(f"touch ran; {UNTIL_GO}"))
        except HostBusy as busy:
            return busy.holder
        return None

    with ThreadPoolExecutor(6) as pool:
        holders = list(pool.map(begin, range(6)))
    assert holders.count(None) == 1
    winner = job_in(local, f"job {holders.index(None)}", slot=True)
    agent = winner.agent
    assert agent.holder(f"{agent.host.workdir}/slot") == winner.folder
    assert [path.parent.name for path in Path(agent.host.workdir).glob("*/ran")] == [Path(winner.folder).name]
    assert set(holders) - {None} <= {winner.folder, ""}  # "" in the instant before it has written its name
    place(winner, "go").touch()
    ended(winner)
    assert agent.holder(f"{agent.host.workdir}/slot") is None

    loser = job_in(local, f"job {(holders.index(None) + 1) % 6}", slot=True)
    place(loser, "go").touch()
    loser.start(shell("exit 1"))
    assert ended(loser).exit_code == 0  # the spec it was claimed with stands


# --- a supervisor that is killed --------------------------------------------------------------------------------------


def test_a_killed_supervisor_takes_its_command_along_and_the_job_is_lost(local: LocalFleet) -> None:
    job = job_in(local, slot=True)
    job.start(python("import time; time.sleep(300)"))
    os.kill(supervisor_of(Path(job.folder)), signal.SIGKILL)
    wait_for(lambda: processes_under(Path(job.folder)) == {}, "the command's death")
    assert job.status().state is JobState.LOST
    assert job.start(shell("exit 0")).state is JobState.LOST
    after = job_in(local, "after", slot=True)
    after.start(shell("exit 0"))
    assert ended(after).exit_code == 0


@pytest.mark.usefixtures("no_patience")
def test_an_orphan_of_a_killed_supervisor_keeps_the_slot(local: LocalFleet) -> None:
    """The command itself dies with its supervisor; a child it has forked may not, and may be using the GPU."""
    job = job_in(local, slot=True)
    job.start(shell("sleep 300 & touch up; wait"))
    wait_for(place(job, "up").exists, "the orphan to be")
    os.kill(supervisor_of(Path(job.folder)), signal.SIGKILL)
    wait_for(lambda: job.status().state is JobState.LOST, "the loss")
    with pytest.raises(HostBusy) as busy:
        job_in(local, "after", slot=True).start(shell("touch ran"))
    assert busy.value.holder == job.folder
    assert not Path(local.host().workdir, "after", "ran").exists()

    local.sweep()
    after = job_in(local, "after", slot=True)
    after.start(shell("touch ran"))
    assert ended(after).exit_code == 0


# --- a host that cannot -----------------------------------------------------------------------------------------------


def test_a_job_that_cannot_be_made_is_refused_with_the_reason(local: LocalFleet) -> None:
    agent = local.agent()
    assert agent.holder(f"{agent.host.workdir}/slot") is None
    Path(agent.host.workdir, "file").write_text("in the way")
    with pytest.raises(HostRefused, match="File exists"):
        Job(agent, f"{agent.host.workdir}/file/job").start(shell("exit 0"))
    with pytest.raises(HostRefused, match="is not a path inside the folder"):
        Job(agent, f"{agent.host.workdir}/job").start(
            JobSpec(command=Command(argv=("true",)), deadline_sec=1.0, files={"../outside": ""})
        )
    assert not Path(agent.host.workdir, "outside").exists()
    assert Job(agent, f"{agent.host.workdir}/job").status().state is JobState.ABSENT


def test_a_program_cut_short_on_its_way_to_the_host_is_not_installed(local: LocalFleet) -> None:
    class Short(CuttableHost):
        def run(self, command, *, stdin=None, **rest):  # type: ignore[no-untyped-def]
            return super().run(command, stdin=stdin[:1000] if isinstance(stdin, bytes) else stdin, **rest)

    job = Job(Agent(Short(host=local.host())), f"{local.host().workdir}/job")
    with pytest.raises(HostUnreachable, match="cut short"):
        job.status()
    assert job_in(local).status().state is JobState.ABSENT


def test_a_job_on_a_full_disk_is_refused_and_one_that_fills_it_ends_once_there_is_room(
    local: LocalFleet, small_disk: Path
) -> None:
    host = local.host(workdir=small_disk / "work")
    agent = Agent(host)
    job = Job(agent, f"{host.workdir}/job", slot=f"{host.workdir}/slot")
    job.start(shell("cat /dev/zero > filler; echo filled > /dev/null"))
    wait_for(lambda: os.statvfs(small_disk).f_bavail == 0, "a full disk")
    with pytest.raises(HostRefused, match="No space left on device"):
        Job(agent, f"{host.workdir}/another").start(shell("exit 0"))
    assert job.status().state is JobState.RUNNING
    place(job, "filler").unlink()
    assert ended(job).exit_code == 0
    assert agent.holder(f"{host.workdir}/slot") is None
