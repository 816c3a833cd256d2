"""Ranks of one trial on several machines: their addresses, and the link that reports other machines' ranks.

The ranks communicate directly. To detect a rank that dies on another machine, each other machine's parent process holds
one TCP connection to the first machine's parent and sends the small files that its ranks write (heartbeats, last
lines). The first machine stores them next to its own ranks' files, so that `Ranks.check_progress` treats all ranks
alike. A last message has the failures of its ranks, as `Ranks.local_failures` returns them. When the first machine's
parent ends or goes silent, the others end their ranks; a machine whose connection breaks without a last message counts
as lost.

Not covered: a machine that joins late or leaves early; encryption (the ranks' own traffic is not encrypted either).
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
from bench.records import schema
from bench.records.paths import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN

JOIN_TIMEOUT_SEC = 180.0  # machines are started in sequence, and the first one may still be reading its model
HEARTBEAT_SEC = 1.0
# Enough for every machine to notice a lost rank, as gloo and NCCL fail immediately, and to let its others report.
LAST_MESSAGE_TIMEOUT_SEC = 8.0
_ACCEPTED_FILES = re.compile(r"rank-\d{1,4}\.(json|log)")
_MAX_LINE_BYTES = 1 << 20  # a last message has the errors of all ranks of a machine


class LeaderGone(RuntimeError):
    """Error of a machine when the first machine's parent has ended or has been silent for too long."""


@dataclass(frozen=True, kw_only=True)
class NodeList:
    """This machine's `rank` of `count`; the first machine's address, the ranks' rendezvous port, and a shared token.

    The parents' connections use the next port.
    """

    count: int
    rank: int
    address: str
    port: int
    token: str

    @classmethod
    def from_environment(cls) -> NodeList | None:
        """Read what the starter of the machines has set; None if the trial runs on one. Raises InputError."""
        if os.environ.get(NODE_COUNT, "1") == "1":
            return None
        try:
            return cls(
                count=int(os.environ[NODE_COUNT]),
                rank=int(os.environ[NODE_RANK]),
                address=os.environ[NODE_ADDRESS],
                port=int(os.environ[NODE_PORT]),
                token=os.environ[NODE_TOKEN],
            )
        except (KeyError, ValueError) as error:
            raise InputError(f"{NODE_COUNT}: the variables of several machines are incomplete: {error}") from error

    def local_ranks(self, world_size: int, machine: int | None = None) -> range:
        """Return the global ranks of a machine (default: this one). Raises InputError if they cannot be divided."""
        each, rest = divmod(world_size, self.count)
        if rest or not each:
            raise InputError(f"world_size: {world_size} ranks cannot be divided among {self.count} machines")
        machine = self.rank if machine is None else machine
        return range(machine * each, (machine + 1) * each)


class NodeHub(contextlib.AbstractContextManager["NodeHub"]):
    """The first machine's side of the links: writes the files that other machines send into `folder`, if there is one.

    `failures` are the last messages of the machines that have failed or are lost.
    """

    def __init__(self, nodes: NodeList, world_size: int, folder: Path | None) -> None:
        self._nodes, self._world_size, self._folder = nodes, world_size, folder
        self.failures: list[dict[str, list[Any]]] = []
        self._links: list[socket.socket] = []
        self._ended: set[int] = set()
        self._closing = False
        try:
            self._server = socket.create_server((nodes.address, nodes.port + 1))
        except OSError as error:
            raise InputError(
                f"{NODE_ADDRESS}: {nodes.address}:{nodes.port + 1} cannot be listened on: {error.strerror}"
            ) from error
        for work in (self._accept, self._send_heartbeats):
            threading.Thread(target=work, daemon=True, name=f"nodes {work.__name__}").start()

    def __exit__(self, *_: object) -> None:
        self._closing = True
        for link in (self._server, *self._links):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def wait_for_nodes(self, timeout_sec: float = LAST_MESSAGE_TIMEOUT_SEC) -> None:
        """Wait until every machine has sent its last message: a machine that ends earlier looks dead to the others."""
        deadline = time.monotonic() + timeout_sec
        while len(self._ended) < self._nodes.count - 1 and time.monotonic() < deadline:
            time.sleep(0.05)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._server.accept()
                self._links.append(link)
                threading.Thread(target=self._receive, args=(link,), daemon=True, name="nodes link").start()

    def _send_heartbeats(self) -> None:
        while not self._closing:
            for link in list(self._links):
                with contextlib.suppress(OSError):
                    link.sendall(b".")
            time.sleep(HEARTBEAT_SEC)

    def _receive(self, link: socket.socket) -> None:
        machine = 0
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), link.makefile("rb") as lines:
            hello = schema.parse_object(lines.readline(_MAX_LINE_BYTES))
            if hello["token"] != self._nodes.token or not 0 < hello["node"] < self._nodes.count:
                link.close()
                return
            machine = int(hello["node"])
            while line := lines.readline(_MAX_LINE_BYTES):
                message = json.loads(line)
                if "ended" in message:
                    self._record_end(machine, message["ended"])
                    return  # the connection stays open until this machine has finished too
                self._store(str(message["file"]), message["content"])
        link.close()
        if machine and not self._closing:
            self._record_end(machine, {"gone": list(self._nodes.local_ranks(self._world_size, machine))})

    def _record_end(self, machine: int, failures: dict[str, list[Any]]) -> None:
        if failures:
            for error in failures.get("errors", []):
                error["at"] += time.monotonic()  # monotonic clocks of two machines differ, so the age is sent
            self.failures.append(failures)
        self._ended.add(machine)

    def _store(self, name: str, content: Any) -> None:
        if self._folder is not None and _ACCEPTED_FILES.fullmatch(name):
            part = self._folder / f".{name}.part"
            part.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
            os.replace(part, self._folder / name)


def dismiss_nodes(nodes: NodeList, world_size: int) -> None:
    """End the wait of the other machines after this first one has refused its inputs."""
    with contextlib.suppress(InputError, OSError), NodeHub(nodes, world_size, None) as hub:
        hub.wait_for_nodes()


class LeaderLink(contextlib.AbstractContextManager["LeaderLink"]):
    """Another machine's side of a link: sends its ranks' files, and detects the loss of the first machine."""

    def __init__(self, nodes: NodeList, silence_sec: float, *, join_timeout_sec: float = JOIN_TIMEOUT_SEC) -> None:
        self._nodes, self._silence_sec = nodes, silence_sec
        self._sent: dict[str, str] = {}
        self._socket = self._connect(join_timeout_sec)
        self._last_heartbeat = time.monotonic()
        self._send({"token": nodes.token, "node": nodes.rank})

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def address(self) -> str:
        """The address at which the first machine answered: its name may also be that of a lost one."""
        return str(self._socket.getpeername()[0])

    def check(self) -> None:
        """Read the first machine's heartbeats. Raises LeaderGone."""
        while select.select([self._socket], [], [], 0)[0]:
            try:
                if not self._socket.recv(4096):
                    raise LeaderGone("the first machine has ended the trial")
            except OSError as error:
                raise LeaderGone(f"the first machine is gone: {error.strerror}") from error
            self._last_heartbeat = time.monotonic()
        if time.monotonic() - self._last_heartbeat > self._silence_sec:
            raise LeaderGone(f"the first machine has been silent for {self._silence_sec:g} s")

    def send_changes(self, folder: Path, ranks: range, logs: dict[int, list[str]]) -> None:
        """Send the changed files of these ranks, and their last lines."""
        for rank in ranks:
            self._send_file(f"rank-{rank}.json", read_object(folder / f"rank-{rank}.json"))
            self._send_file(f"rank-{rank}.log", "\n".join(logs[rank]))

    def send_end(self, failures: dict[str, list[Any]]) -> None:
        """Send the last message; `failures` is empty on success.

        After failures, wait until the first machine has ended: the Job may stop all other pods when this one ends, the
        first one included, which still writes the result.
        """
        for error in failures.get("errors", []):
            error["at"] -= time.monotonic()
        self._send({"ended": failures})
        with contextlib.suppress(LeaderGone):
            deadline = time.monotonic() + self._silence_sec
            while failures and time.monotonic() < deadline:
                self.check()
                time.sleep(0.05)

    def _send_file(self, name: str, content: Any) -> None:
        if not content:
            return
        text = json.dumps(content)
        if self._sent.get(name) != text:
            self._send({"file": name, "content": content})
            self._sent[name] = text

    def _send(self, line: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise LeaderGone(f"the first machine is gone: {error.strerror}") from error

    def _connect(self, timeout_sec: float) -> socket.socket:
        address, deadline = (self._nodes.address, self._nodes.port + 1), time.monotonic() + timeout_sec
        while True:
            try:
                link = socket.create_connection(address, timeout=self._silence_sec)
            except OSError as error:
                if time.monotonic() > deadline:
                    name = f"{address[0]}:{address[1]}"
                    reason = f"did not answer for {timeout_sec:g} s: {error.strerror or error}"
                    raise LeaderGone(f"the first machine at {name} {reason}") from error
                time.sleep(0.3)
            else:
                return link


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a small file; return an empty one if it is missing, unreadable or not an object."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
