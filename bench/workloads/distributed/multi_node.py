"""Ranks of one trial on several machines: where they meet, and how the first machine learns of the others' ranks.

`torchrun` starts each machine's ranks, which communicate by themselves. To learn of a rank that dies elsewhere, every
other machine's parent process holds one TCP connection to the first machine's and sends the small files that its ranks
write (signs, errors, last lines). The first machine puts them beside those of its own ranks, so that `Torchrun.look`
and `.failure` treat all ranks alike. When the first machine's parent ends or goes silent, the others end their ranks; a
machine whose connection breaks without a last message is gone.

Not covered: a machine that joins later or leaves early; encryption (the ranks' own traffic has none either).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.records import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN

JOIN_SEC = 180.0  # machines are started one after the other, and the first one may still be reading its model
BEAT_SEC = 1.0
SETTLE_SEC = 5.0  # by then every machine has noticed a lost rank: gloo and NCCL break at once
_STORED = re.compile(r"(rank|error)-\d{1,4}\.json|logs/\d{1,4}/stderr\.log")
_LONGEST_LINE = 1 << 16


class LeaderGone(RuntimeError):
    """The first machine's parent has ended, or has been silent for too long."""


@dataclass(frozen=True, kw_only=True)
class NodeList:
    """This machine's `rank` of `count`; the first one's address, the port where ranks meet, and a shared token.

    The parents' connections use the next port.
    """

    count: int
    rank: int
    address: str
    port: int
    token: str

    @classmethod
    def from_environment(cls) -> NodeList | None:
        """None where the trial runs on one machine. Raises InputError."""
        if os.environ.get(NODE_COUNT, "1") == "1":
            return None
        given = {
            name: os.environ.get(name, "") for name in (NODE_COUNT, NODE_RANK, NODE_ADDRESS, NODE_PORT, NODE_TOKEN)
        }
        for name, least, most in ((NODE_COUNT, 1, 1024), (NODE_RANK, 0, 1023), (NODE_PORT, 1, 65_534)):
            text = given[name]
            if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
                raise InputError(f"{name}: expected a whole number from {least} to {most}, found {text!r}")
        if int(given[NODE_RANK]) >= int(given[NODE_COUNT]):
            raise InputError(f"{NODE_RANK}: {given[NODE_RANK]} of {given[NODE_COUNT]} machines; they count from 0")
        for name in (NODE_ADDRESS, NODE_TOKEN):
            if not given[name]:
                raise InputError(f"{name}: not set; it says where the ranks of {NODE_COUNT} machines meet")
        count, rank = int(given[NODE_COUNT]), int(given[NODE_RANK])
        return cls(
            count=count, rank=rank, address=given[NODE_ADDRESS], port=int(given[NODE_PORT]), token=given[NODE_TOKEN]
        )

    def ranks_here(self, world_size: int, machine: int | None = None) -> range:
        """The global ranks of a machine (this one by default). Raises InputError where they cannot be divided."""
        each, rest = divmod(world_size, self.count)
        if rest or not each:
            raise InputError(f"world_size: {world_size} ranks cannot be divided among {self.count} machines")
        machine = self.rank if machine is None else machine
        return range(machine * each, (machine + 1) * each)


class NodeHub(contextlib.AbstractContextManager["NodeHub"]):
    """The first machine's end: writes into `folder` what the other machines send."""

    def __init__(self, machines: NodeList, world_size: int, folder: Path) -> None:
        self._machines, self._world_size, self._folder = machines, world_size, folder
        self._links: dict[int, socket.socket] = {}
        self._accepted: list[socket.socket] = []
        self._ended: set[int] = set()
        self._closing = False
        try:
            self._server = socket.create_server((machines.address, machines.port + 1))
        except OSError as error:
            raise InputError(
                f"{NODE_ADDRESS}: {machines.address}:{machines.port + 1} cannot be listened on: {error.strerror}"
            ) from None
        for work in (self._accept, self._beat):
            threading.Thread(target=work, daemon=True, name=f"nodes {work.__name__}").start()

    def __exit__(self, *_: object) -> None:
        self._closing = True
        for link in (self._server, *self._accepted):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    @property
    def has_failure(self) -> bool:
        """Whether another machine has ended badly, or is gone."""
        return any(self._folder.glob("failures-*.json"))

    def settle(self, at_most_sec: float = SETTLE_SEC) -> None:
        """Wait until every machine has sent its last message. To the others, a machine that ends earlier looks dead."""
        until = time.monotonic() + at_most_sec
        while len(self._ended) < self._machines.count - 1 and time.monotonic() < until:
            time.sleep(0.05)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._server.accept()
                self._accepted.append(link)
                threading.Thread(target=self._receive, args=(link,), daemon=True, name="nodes link").start()

    def _beat(self) -> None:
        while not self._closing:
            for link in list(self._links.values()):
                with contextlib.suppress(OSError):
                    link.sendall(b".")
            time.sleep(BEAT_SEC)

    def _receive(self, link: socket.socket) -> None:
        machine = 0
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), link.makefile("rb") as lines:
            hello = json.loads(lines.readline(_LONGEST_LINE))
            if hello["token"] != self._machines.token or not 0 < hello["node"] < self._machines.count:
                link.close()
                return
            machine = int(hello["node"])
            self._links[machine] = link
            while line := lines.readline(_LONGEST_LINE):
                message = json.loads(line)
                if "ended" in message:
                    self._end(machine, message["ended"])
                    return  # the connection stays open until this machine is done too
                self._store(str(message["file"]), message["content"])
        link.close()
        if machine and not self._closing:
            self._end(machine, {"gone": list(self._machines.ranks_here(self._world_size, machine))})

    def _end(self, machine: int, failures: dict[str, Any]) -> None:
        if failures:
            self._write(self._folder / f"failures-{machine}.json", failures)
        self._ended.add(machine)

    def _store(self, name: str, content: Any) -> None:
        if not _STORED.fullmatch(name):
            return
        if name.startswith("error-"):  # monotonic clocks of two machines differ; an age can be sent
            content = {**content, "at": time.monotonic() - content.pop("age_sec")}
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write(path, content)

    def _write(self, path: Path, content: Any) -> None:
        part = path.with_name(f".{path.name}.part")
        part.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        os.replace(part, path)


class LeaderLink(contextlib.AbstractContextManager["LeaderLink"]):
    """Another machine's end: sends what its ranks write, and notices when the first machine is gone."""

    def __init__(self, machines: NodeList, silence_sec: float) -> None:
        self._machines, self._silence_sec = machines, silence_sec
        self._sent: dict[str, str] = {}
        self._socket = self._connect()
        self._heard = time.monotonic()
        self._send({"token": machines.token, "node": machines.rank})

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def check(self) -> None:
        """Raises LeaderGone."""
        while select.select([self._socket], [], [], 0)[0]:
            try:
                if not self._socket.recv(4096):
                    raise LeaderGone("the first machine has ended the trial")
            except OSError as error:
                raise LeaderGone(f"the first machine is gone: {error.strerror}") from None
            self._heard = time.monotonic()
        if time.monotonic() - self._heard > self._silence_sec:
            raise LeaderGone(f"the first machine has been silent for {self._silence_sec:g} s")

    def mirror(self, folder: Path, ranks: range, logs: dict[int, list[str]]) -> None:
        """Send what has changed of these ranks' files, and their last lines."""
        for rank in ranks:
            self._file(f"rank-{rank}.json", read_object(folder / f"rank-{rank}.json"))
            error = read_object(folder / f"error-{rank}.json")
            if error and f"error-{rank}.json" not in self._sent:
                self._file(f"error-{rank}.json", {**error, "age_sec": time.monotonic() - error.pop("at")})
            self._file(f"logs/{rank}/stderr.log", "\n".join(logs[rank]))

    def complain(self, rank: int, reason: str) -> None:
        """Report that this machine cannot take part: the trial's input is not usable here."""
        self._file(f"error-{rank}.json", {"rank": rank, "kind": "input", "reason": reason, "age_sec": 0.0})
        self.end({"ranks": []})

    def end(self, failures: dict[str, Any]) -> None:
        """Send the last message; `failures` is empty on success.

        After failures this machine waits until the first one has ended: a pod that ends earlier makes its Job stop all
        others (backoffLimit 0), also the first one while it writes the result.
        """
        self._send({"ended": failures})
        with contextlib.suppress(LeaderGone):
            until = time.monotonic() + self._silence_sec
            while failures and time.monotonic() < until:
                self.check()
                time.sleep(0.05)

    def _file(self, name: str, content: Any) -> None:
        if not content:
            return
        if isinstance(content, dict):
            content.pop("pid", None)  # another machine's processes have other numbers
        known = json.dumps(content)
        if self._sent.get(name) != known:
            self._send({"file": name, "content": content})
            self._sent[name] = known

    def _send(self, line: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise LeaderGone(f"the first machine is gone: {error.strerror}") from None

    def _connect(self) -> socket.socket:
        place, until = (self._machines.address, self._machines.port + 1), time.monotonic() + JOIN_SEC
        while True:
            try:
                link = socket.create_connection(place, timeout=self._silence_sec)
            except OSError as error:
                if time.monotonic() > until:
                    words = f"{place[0]}:{place[1]} did not answer for {JOIN_SEC:g} s: {error.strerror or error}"
                    raise LeaderGone(f"the first machine at {words}") from None
                time.sleep(0.3)
            else:
                return link


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a small file; empty where it is missing, unreadable or anything else."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
