"""Several hosts that run one trial together: to the fleet one agent, to the ledger one attempt and one end.

The first host leads: its job is the trial's, with its folder, result and log. Starting it, once no host is at another
job, starts a job in the same folder on every other host first, each told its place by environment variables; cancelling
it cancels them all. What the others come to, the leader learns by itself (`bench.kinds.distributed.machines`), ends
with, and says; and when it ends, for whatever reason, so do they.

Where the ranks meet is the leader's own address, so that no cluster DNS is needed. Not covered: gangs side by side on
disjoint hosts; trials of a gang run one after the other.
"""

from __future__ import annotations

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
    """The agent of `members[0]`, which leads. `address` says where the others reach it; it raises as a host does."""

    def __init__(self, members: Sequence[Host], address: Callable[[], str]) -> None:
        super().__init__(members[0])
        self._others = [Agent(member) for member in members[1:]]
        self._address = address

    def line(
        self, verb: str, arguments: dict[str, Any], *, payload: Any = None, timeout_sec: float = 60.0
    ) -> dict[str, Any]:
        """As `Agent.line`; `start`, `cancel` and `holder` are for every member."""
        ask = super().line
        if verb == "start":
            return self._start(arguments, payload, timeout_sec)
        if verb == "cancel":
            self._tell_others(verb, arguments, timeout_sec)
        if verb == "holder":
            answers = [agent.line(verb, arguments, timeout_sec=timeout_sec) for agent in self._others]
            answers.append(ask(verb, arguments, timeout_sec=timeout_sec))
            return next((answer for answer in answers if answer["holder"] is not None), answers[-1])
        return ask(verb, arguments, payload=payload, timeout_sec=timeout_sec)

    def _start(self, arguments: dict[str, Any], payload: Any, timeout_sec: float) -> dict[str, Any]:
        count = int(payload["environment"].get(NODE_COUNT, "1"))
        if count > 1 + len(self._others):
            raise HostError(f"{self.host.name}: {count} hosts are needed, {1 + len(self._others)} are there")
        if count == 1:
            return super().line("start", arguments, payload=payload, timeout_sec=timeout_sec)
        members = [*self._others[: count - 1], Agent(self.host)]
        busy = self._busy(members, arguments, timeout_sec)
        if busy is not None:
            return busy
        address = self._address()

        def start(rank: int) -> dict[str, Any]:
            mine = {**payload, "environment": {**payload["environment"], **place(arguments["job"], address, rank)}}
            return self._others[rank - 1].line("start", arguments, payload=mine, timeout_sec=timeout_sec)

        # One member before all others: of two gangs that begin together, the one that has it goes on, and the other
        # holds nothing that the first would wait for.
        answers = [start(1)]
        if answers[0]["state"] != "busy":
            with ThreadPoolExecutor(max_workers=min(32, count - 1)) as pool:
                answers += pool.map(start, range(2, count))
        busy = next((answer for answer in answers if answer["state"] == "busy"), None)
        if busy is not None:
            return busy
        first = {**payload, "environment": {**payload["environment"], **place(arguments["job"], address, 0)}}
        return super().line("start", arguments, payload=first, timeout_sec=timeout_sec)

    @staticmethod
    def _busy(members: Sequence[Agent], arguments: dict[str, Any], timeout_sec: float) -> dict[str, Any] | None:
        """The answer that a member at another job would give; asked first, so that nobody starts and then waits."""
        if arguments["slot"] is None:
            return None

        def holder(agent: Agent) -> str | None:
            answer = agent.line("holder", {"slot": arguments["slot"]}, timeout_sec=timeout_sec)["holder"]
            return None if answer is None else str(answer)

        with ThreadPoolExecutor(max_workers=min(32, len(members))) as pool:
            holders = list(pool.map(holder, members))
        # By run and attempt: the folder above them may be another one on each host.
        ours = PurePosixPath(arguments["job"]).parts[-2:]
        others = [one for one in holders if one is not None and PurePosixPath(one).parts[-2:] != ours]
        return {"state": "busy", "holder": others[0]} if others else None

    def _tell_others(self, verb: str, arguments: dict[str, Any], timeout_sec: float) -> None:
        def tell(agent: Agent) -> None:
            try:
                agent.line(verb, arguments, timeout_sec=timeout_sec)
            except HostError:
                return  # out of reach: its ranks end by themselves once the leader's have

        with ThreadPoolExecutor(max_workers=min(32, max(1, len(self._others)))) as pool:
            list(pool.map(tell, self._others))


def place(job: str, address: str, rank: int) -> dict[str, str]:
    """A member's place. Made from the job's folder alone, so that a start that is repeated says the same again."""
    digest = hashlib.sha256(job.encode()).digest()
    port = _FIRST_PORT + 2 * (int.from_bytes(digest[:4], "big") % _PORTS)
    return {NODE_RANK: str(rank), NODE_ADDRESS: address, NODE_PORT: str(port), NODE_TOKEN: digest[4:20].hex()}
