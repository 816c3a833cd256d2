"""Gang scheduling: several hosts that run one trial together, as one agent of the fleet and one attempt in the ledger.

The first host leads: its job is the trial's, with its folder, result and log. It starts once no host has another job
and every other host has started a job in the same folder, with its rank in environment variables. Cancelling the
leader cancels all. The leader notices how the other jobs end (`bench.workloads.ranks.multi_node`), ends with them
and gives the reason; when the leader ends, the others end too.

The ranks connect to the leader's own address, so no cluster DNS is needed. Not covered: several gangs at a time on
disjoint hosts; a gang's trials run one after the other.
"""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

from bench.records.paths import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from remote.hosts.host_protocol import Host, HostError
from remote.jobs.job import Agent

_FIRST_PORT, _PORT_COUNT = 21_000, 4_000  # below the ephemeral ports; two ports for each gang
_STATE_ARGUMENTS = {"progress": "progress.json", "every_sec": 1.0, "for_sec": 0.0}  # a `watch` with one state


class GangAgent(Agent):
    """The agent of `members[0]`, the leader. `address` returns the leader's address or raises HostError."""

    def __init__(self, members: Sequence[Host], address: Callable[[], str]) -> None:
        super().__init__(members[0])
        self._others = [Agent(member) for member in members[1:]]
        self._address = address

    def start(self, job: str, spec: dict[str, Any], slot: str | None, names: tuple[str, ...] = ()) -> dict[str, Any]:
        """Start the job like `Agent.start`, on one member for each rank. Raises HostError if there are too few.

        A leader that has started before had all members; then none is started again, as a replaced host could not join.
        The state is "absent" if the leader's host was replaced during the start, or a member has ended before the
        leader's start: the members are cancelled and this attempt is lost; the next one has its own folder.
        """
        count = int(spec["environment"].get(NODE_COUNT, "1"))
        if count > 1 + len(self._others):
            raise HostError(f"{self.host.name}: {count} hosts are needed, the gang has {1 + len(self._others)}")
        if count == 1:
            return super().start(job, spec, slot, names)
        leader_state = self.call_line("watch", {"job": job, **_STATE_ARGUMENTS})
        if leader_state["state"] in ("running", "ended", "lost"):
            return leader_state
        holder = None if slot is None else self._find_other_job(slot, job, count)
        if holder is not None:
            return {"state": "busy", "holder": holder}
        address = self._address()

        def spec_of(rank: int) -> dict[str, Any]:
            return {**spec, "environment": {**spec["environment"], **rank_environment(job, address, rank)}}

        def start(rank: int) -> dict[str, Any]:
            return self._others[rank - 1].start(job, spec_of(rank), slot, (NODE_ADDRESS,))

        # Start one member before the others: if two gangs start at the same time, only one of them gets that member,
        # and the other gang holds no host that the first would wait for.
        states = [start(1)]
        if states[0]["state"] != "busy":
            with ThreadPoolExecutor(max_workers=min(32, count - 1)) as pool:
                states += pool.map(start, range(2, count))
        busy = next((state for state in states if state["state"] == "busy"), None)
        if busy is not None:
            return busy
        # The leader's host may have been replaced since a member was started, by this call or an earlier one. That
        # member would connect to the leader's old address, and the leader would wait for it.
        addresses = {state.get("environment", {}).get(NODE_ADDRESS, address) for state in states}
        has_ended_member = any(state["state"] in ("ended", "lost") for state in states)
        if has_ended_member or addresses | {self._address()} != {address}:
            self.free_members(job, grace_sec=float(spec["grace_sec"]))
            return {"state": "absent"}
        return super().start(job, spec_of(0), slot, names)

    def cancel(self, job: str, *, grace_sec: float) -> dict[str, Any]:
        """Cancel the job on every member, like `Agent.cancel`. A member that does not answer ends after the leader.

        The leader is first, so that its result says that it was cancelled, and not that another rank was.
        """
        try:
            return super().cancel(job, grace_sec=grace_sec)
        finally:
            self.free_members(job, grace_sec=grace_sec)

    def free_members(self, job: str, *, grace_sec: float) -> None:
        """Cancel the other members: one that has not met its leader would wait for it for minutes."""

        def cancel(agent: Agent) -> None:
            with contextlib.suppress(HostError):
                agent.cancel(job, grace_sec=grace_sec)

        with ThreadPoolExecutor(max_workers=min(32, max(1, len(self._others)))) as pool:
            list(pool.map(cancel, self._others))

    def holder(self, slot: str) -> str | None:
        """Return the first job that holds the slot of any member, like `Agent.holder`. Every member is queried."""
        holders = [*(agent.holder(slot) for agent in self._others), super().holder(slot)]
        return next((holder for holder in holders if holder is not None), None)

    def check_disk_space(self) -> None:
        """Check the free space of every member, like `Agent.check_disk_space`."""
        for agent in self._others:
            agent.check_disk_space()
        super().check_disk_space()

    def _find_other_job(self, slot: str, job: str, count: int) -> str | None:
        """Return another job on one of `count` members. Called before a start, so that no member starts and waits."""
        members = [*self._others[: count - 1], Agent(self.host)]
        with ThreadPoolExecutor(max_workers=min(32, count)) as pool:
            holders = list(pool.map(lambda agent: agent.holder(slot), members))
        # Compared by run and attempt: the folder above them may differ from host to host.
        own = PurePosixPath(job).parts[-2:]
        return next(
            (holder for holder in holders if holder is not None and PurePosixPath(holder).parts[-2:] != own), None
        )


def rank_environment(job: str, address: str, rank: int) -> dict[str, str]:
    """Return a member's environment variables. They depend only on the arguments, so a repeated start gets the same."""
    digest = hashlib.sha256(job.encode()).digest()
    port = _FIRST_PORT + 2 * (int.from_bytes(digest[:4], "big") % _PORT_COUNT)
    return {NODE_RANK: str(rank), NODE_ADDRESS: address, NODE_PORT: str(port), NODE_TOKEN: digest[4:20].hex()}
