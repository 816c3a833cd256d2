"""Several local hosts under one agent: the environment of each job, and the cancellation of all."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.records.paths import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from remote.fleet.gang_agent import GangAgent
from remote.hosts.command import Command
from remote.hosts.host_protocol import HostError, HostUnreachable
from remote.jobs.job import Agent, HostBusy, Job, JobSpec, JobState
from tests.support.faults import wait_for
from tests.support.hosts.local_fleet import CuttableHost, LocalFleet

pytestmark = pytest.mark.usefixtures("short_claim_timeout")
Members = Callable[[int], tuple[GangAgent, list[CuttableHost]]]


def spec(count: int, script: str = "sleep 60") -> JobSpec:
    command = Command(argv=("sh", "-c", script), environment={NODE_COUNT: str(count)})
    return JobSpec(command=command, deadline_sec=60.0, grace_sec=1.0)


def folder_of(wire: CuttableHost) -> Path:
    return Path(wire.workdir, "runs", "job")


def end_of(wire: CuttableHost) -> dict[str, object]:
    """Return the end of the job on this member; empty while it runs."""
    path = folder_of(wire) / "end.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def cut_off_at_start(wire: CuttableHost) -> None:
    """Cut the connection when a job is to be started."""

    def cut(command: Command) -> None:
        wire.plugged = "start" not in command.argv

    wire.before = cut


def repair(wire: CuttableHost) -> None:
    wire.before, wire.plugged = lambda _: None, True


@pytest.fixture
def members(local: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> Members:
    """Factory of gangs of any size whose jobs are in each member's own folder, although they share one path."""
    original = Agent.call_line

    def call_line(self: Agent, verb: str, arguments: dict[str, object], **more: object) -> object:
        rewritten = {
            key: str(value).replace("/same", self.host.workdir, 1) if key in ("job", "slot") and value else value
            for key, value in arguments.items()
        }
        return original(self, verb, rewritten, **more)  # type: ignore[arg-type]

    def make_gang(size: int) -> tuple[GangAgent, list[CuttableHost]]:
        wires = [CuttableHost(host=host) for host in local.hosts(size)]
        return GangAgent(wires, lambda: "10.0.0.7"), wires

    monkeypatch.setattr(Agent, "call_line", call_line)
    return make_gang


def test_every_member_gets_its_rank_and_the_leaders_address(members: Members) -> None:
    agent, wires = members(3)
    job = Job(agent, "/same/runs/job", slot="/same/slot")
    assert job.start(spec(3)).state is JobState.RUNNING
    environments = [json.loads((folder_of(wire) / "spec.json").read_text())["environment"] for wire in wires]
    assert [environment[NODE_RANK] for environment in environments] == ["0", "1", "2"]
    assert {environment[NODE_ADDRESS] for environment in environments} == {"10.0.0.7"}
    assert len({(each[NODE_COUNT], each[NODE_PORT], each[NODE_TOKEN]) for each in environments}) == 1
    assert job.start(spec(3)).state is JobState.RUNNING  # a second start has no effect
    job.cancel()
    for wire in wires:
        assert json.loads((folder_of(wire) / "end.json").read_text())["why"] == "cancelled"


def test_a_trial_of_fewer_ranks_does_not_use_the_other_members(members: Members) -> None:
    agent, wires = members(3)
    Job(agent, "/same/runs/job").start(spec(1, "true"))
    assert [folder_of(wire).exists() for wire in wires] == [True, False, False]
    with pytest.raises(HostError, match=r"4 hosts.* 3"):
        Job(agent, "/same/runs/four").start(spec(4))


def test_no_member_starts_while_another_is_busy_and_its_job_is_named(members: Members) -> None:
    """A member that had started would hold its slot, wait needlessly for the leader, and end with the attempt."""
    agent, wires = members(3)
    for busy in (2, 0):  # the last member, and the leader itself
        other = Job(Agent(wires[busy]), f"/same/runs/other-{busy}", slot="/same/slot")
        other.start(spec(1))
        assert str(agent.holder("/same/slot")).endswith(f"runs/other-{busy}")
        with pytest.raises(HostBusy, match=f"runs/other-{busy}"):
            Job(agent, "/same/runs/job", slot="/same/slot").start(spec(3))
        assert [folder_of(wire).exists() for wire in wires] == [False, False, False]
        other.cancel()
    assert Job(agent, "/same/runs/job", slot="/same/slot").start(spec(3)).state is JobState.RUNNING
    agent.cancel("/same/runs/job", grace_sec=1.0)


def test_an_unreachable_member_makes_the_gang_unreachable(members: Members) -> None:
    agent, wires = members(2)
    wires[1].plugged = False
    with pytest.raises(HostUnreachable, match="worker-2"):
        Job(agent, "/same/runs/job").start(spec(2))
    for ask in (lambda: agent.holder("/same/slot"), agent.check_disk_space):
        with pytest.raises(HostUnreachable, match="worker-2"):
            ask()
    assert not folder_of(wires[0]).exists()


def test_an_attempt_is_lost_at_once_where_its_leader_is_replaced_while_the_gang_starts(members: Members) -> None:
    """No member waits minutes for the leader's old address: the next attempt can start."""
    agent, wires = members(3)
    addresses = ["10.0.0.7"]
    gang = GangAgent(wires, lambda: addresses[-1])
    cut_off_at_start(wires[0])  # its pod is being deleted
    with pytest.raises(HostUnreachable, match="worker-1"):
        Job(gang, "/same/runs/job").start(spec(3))
    repair(wires[0])
    addresses.append("10.0.0.8")  # its replacement has the same name
    assert Job(gang, "/same/runs/job").start(spec(3)).state is JobState.ABSENT
    assert not folder_of(wires[0]).exists()
    for wire in wires[1:]:
        assert json.loads((folder_of(wire) / "end.json").read_text())["why"] == "cancelled"
    assert Job(agent, "/same/runs/next").start(spec(3)).state is JobState.RUNNING
    agent.cancel("/same/runs/next", grace_sec=1.0)


def test_an_attempt_that_has_ended_is_not_started_on_a_replaced_member(members: Members) -> None:
    """The member would wait for its leader for minutes, and hold its host."""
    agent, wires = members(3)
    job = Job(agent, "/same/runs/job", slot="/same/slot")
    job.start(spec(3))  # a member that ended before its leader's start would make the attempt absent
    job.cancel()
    wait_for(lambda: all(end_of(wire) for wire in wires))
    shutil.rmtree(wires[2].workdir)  # its pod has been replaced
    assert job.start(spec(3)).state is JobState.ENDED
    assert not folder_of(wires[2]).exists()


def test_a_leader_is_not_started_for_members_that_have_ended(members: Members) -> None:
    agent, wires = members(3)
    Job(Agent(wires[1]), "/same/runs/job").start(spec(3, "exit 1"))  # its leader did not come
    wait_for(lambda: end_of(wires[1]))
    assert Job(agent, "/same/runs/job").start(spec(3)).state is JobState.ABSENT
    assert not folder_of(wires[0]).exists()
    assert end_of(wires[2])["why"] == "cancelled"


def test_members_that_have_not_met_their_ended_leader_are_freed(members: Members) -> None:
    agent, wires = members(2)
    other = Job(Agent(wires[1]), "/same/runs/job", slot="/same/slot")
    other.start(spec(1))
    agent.free_members("/same/runs/job", grace_sec=1.0)
    assert end_of(wires[1])["why"] == "cancelled"
    wires[1].plugged = False
    agent.free_members("/same/runs/job", grace_sec=1.0)  # an unreachable member ends on its own


def test_a_gang_can_be_cancelled_without_a_member_that_is_gone(members: Members) -> None:
    agent, wires = members(2)
    job = Job(agent, "/same/runs/job")
    job.start(spec(2))
    wires[1].plugged = False
    assert job.cancel().why == "cancelled"
    wires[1].plugged = True
    Job(Agent(wires[1]), "/same/runs/job").cancel()
