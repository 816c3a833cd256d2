"""Several hosts that run one trial together: to the fleet one agent, to the ledger one attempt and one end.

The first host leads: its job is the trial's, with its folder, result and log. It starts once no host has another job
and every other host has started a job in the same folder, with its rank in environment variables. To cancel it is to
cancel them all. The leader itself finds out how the other jobs end (`bench.workloads.distributed.multi_node`), ends with them
and gives the reason; when the leader ends, the others end too.

The ranks meet at the leader's own address, so that no cluster DNS is needed. Not covered: gangs side by side on
disjoint hosts; trials of a gang run one after the other.
"""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

from bench.records import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from remote.hosts.host import Host, HostError
from remote.jobs.agent import Agent

_FIRST_PORT, _PORTS = 21_000, 4_000  # below what systems hand out to outgoing connections; two for each gang


class GangAgent(Agent):
    """The agent of `members[0]`, which leads. `address` is where the others reach it; it raises as a host does."""

    def __init__(self, members: Sequence[Host], address: Callable[[], str]) -> None:
        super().__init__(members[0])
        self._others = [Agent(member) for member in members[1:]]
        self._address = address

    def start(
        self, job: str, spec: dict[str, Any], *, slot: str | None, claim_sec: float, tell: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """As `Agent.start`, for as many members as the trial has ranks. Raises HostError where there are too few.

        Absent where the leader's host was replaced while the gang started: its members are cancelled, this attempt is
        lost, and the next one has a folder of its own.
        """
        count = int(spec["environment"].get(NODE_COUNT, "1"))
        if count > 1 + len(self._others):
            raise HostError(f"{self.host.name}: {count} hosts are needed, {1 + len(self._others)} are there")
        if count == 1:
            return super().start(job, spec, slot=slot, claim_sec=claim_sec, tell=tell)
        holder = None if slot is None else self._other_job(slot, job, count)
        if holder is not None:
            return {"state": "busy", "holder": holder}
        address = self._address()

        def spec_of(rank: int) -> dict[str, Any]:
            return {**spec, "environment": {**spec["environment"], **place(job, address, rank)}}

        def start(rank: int) -> dict[str, Any]:
            member = self._others[rank - 1]
            return member.start(job, spec_of(rank), slot=slot, claim_sec=claim_sec, tell=(NODE_ADDRESS,))

        # One member before all others: of two gangs that begin together, the one that has it goes on, and the other
        # holds nothing that the first would wait for.
        answers = [start(1)]
        if answers[0]["state"] != "busy":
            with ThreadPoolExecutor(max_workers=min(32, count - 1)) as pool:
                answers += pool.map(start, range(2, count))
        busy = next((answer for answer in answers if answer["state"] == "busy"), None)
        if busy is not None:
            return busy
        # The leader's host may have been replaced since a member was started, by this call or an earlier one. That
        # member would connect to the leader's old address, and the leader would wait for it.
        told = {answer.get("environment", {}).get(NODE_ADDRESS, address) for answer in answers}
        if told | {self._address()} != {address}:
            self._cancel_others(job, grace_sec=float(spec["grace_sec"]))
            return {"state": "absent"}
        return super().start(job, spec_of(0), slot=slot, claim_sec=claim_sec, tell=tell)

    def cancel(self, job: str, *, grace_sec: float) -> dict[str, Any]:
        """As `Agent.cancel`, for every member. One that does not answer ends by itself once the leader has ended.

        The leader first: its result then says that it was asked to stop, and not that another rank was.
        """
        try:
            return super().cancel(job, grace_sec=grace_sec)
        finally:
            self._cancel_others(job, grace_sec=grace_sec)

    def _cancel_others(self, job: str, *, grace_sec: float) -> None:
        def cancel(agent: Agent) -> None:
            with contextlib.suppress(HostError):
                agent.cancel(job, grace_sec=grace_sec)

        with ThreadPoolExecutor(max_workers=min(32, max(1, len(self._others)))) as pool:
            list(pool.map(cancel, self._others))

    def holder(self, slot: str) -> str | None:
        """As `Agent.holder`: the first job that holds the slot of any member. Every member is asked."""
        holders = [*(agent.holder(slot) for agent in self._others), super().holder(slot)]
        return next((holder for holder in holders if holder is not None), None)

    def check_room(self) -> None:
        """As `Agent.check_room`, on every member."""
        for agent in self._others:
            agent.check_room()
        super().check_room()

    def _other_job(self, slot: str, job: str, count: int) -> str | None:
        """Another job on one of `count` members; asked first, so that none starts and then waits."""
        members = [*self._others[: count - 1], Agent(self.host)]
        with ThreadPoolExecutor(max_workers=min(32, count)) as pool:
            holders = list(pool.map(lambda agent: agent.holder(slot), members))
        # By run and attempt: the folder above them may be another one on each host.
        ours = PurePosixPath(job).parts[-2:]
        return next(
            (holder for holder in holders if holder is not None and PurePosixPath(holder).parts[-2:] != ours), None
        )


def place(job: str, address: str, rank: int) -> dict[str, str]:
    """A member's place. It depends on the job's folder alone, so that a start that is repeated gives the same place."""
    digest = hashlib.sha256(job.encode()).digest()
    port = _FIRST_PORT + 2 * (int.from_bytes(digest[:4], "big") % _PORTS)
    return {NODE_RANK: str(rank), NODE_ADDRESS: address, NODE_PORT: str(port), NODE_TOKEN: digest[4:20].hex()}
