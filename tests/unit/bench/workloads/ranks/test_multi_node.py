"""The link between the first machine of a rank group and the others, without starting ranks."""

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from bench.data.inputs import InputError
from bench.records.paths import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from bench.workloads.ranks.multi_node import LeaderGone, LeaderLink, NodeHub, NodeList
from bench.workloads.ranks.watch import Ranks
from tests.support.faults import wait_for
from tests.support.machines.ports import free_ports

pytestmark = pytest.mark.slow

WAIT_SEC = 60.0
NODE = {NODE_COUNT: "4", NODE_RANK: "2", NODE_ADDRESS: "10.0.0.7", NODE_PORT: "21000", NODE_TOKEN: "word"}


def node_list(rank: int, port: int, **changes: str) -> NodeList:
    return NodeList(**({"count": 2, "rank": rank, "address": "127.0.0.1", "port": port, "token": "word"} | changes))


@pytest.fixture
def port() -> int:
    return free_ports(2)


@pytest.fixture
def hub(port, tmp_path) -> Iterator[NodeHub]:
    with NodeHub(node_list(0, port), 2, tmp_path) as hub:
        yield hub


def test_the_node_list_comes_from_the_environment_and_is_none_on_one_machine(monkeypatch):
    for name, value in NODE.items():
        monkeypatch.setenv(name, value)
    nodes = NodeList.from_environment()
    assert nodes == NodeList(count=4, rank=2, address="10.0.0.7", port=21000, token="word")
    assert (nodes.local_ranks(4), nodes.local_ranks(8), nodes.local_ranks(8, 0)) == (range(2, 3), range(4, 6), range(2))
    for world_size in (2, 6):
        with pytest.raises(InputError, match=rf"^world_size: {world_size} .* 4 "):
            nodes.local_ranks(world_size)
    monkeypatch.setenv(NODE_PORT, "x")
    with pytest.raises(InputError, match=f"^{NODE_COUNT}: "):
        NodeList.from_environment()
    monkeypatch.setenv(NODE_COUNT, "1")
    assert NodeList.from_environment() is None
    monkeypatch.delenv(NODE_COUNT)
    assert NodeList.from_environment() is None


def test_heartbeats_errors_and_last_lines_are_stored_next_to_the_local_ones(hub, port, tmp_path):
    remote, ranks = tmp_path / "remote", Ranks.__new__(Ranks)
    remote.mkdir()
    (remote / "rank-1.log").write_text("\U0001f600" * 9999 + "\nlast")
    ranks.folder = remote
    (remote / "rank-1.json").write_text('{"count": 3, "phase": "measure", "step": 2}')
    error = {"rank": 1, "reason_code": "error", "reason": "\U0001f600" * 9999, "at": time.monotonic()}
    with LeaderLink(node_list(1, port), 0.5) as link:
        link.send_changes(remote, range(1, 2), {1: ranks.last_lines(1)})
        link.send_end({"ranks": [[1, -9]], "errors": [error.copy()]})
    wait_for(lambda: hub.failures)
    assert json.loads((tmp_path / "rank-1.json").read_text()) == {"count": 3, "phase": "measure", "step": 2}
    long_line, last = (tmp_path / "rank-1.log").read_text().split("\n")
    assert (len(long_line), last) == (500, "last")
    # The time of the other machine's clock is converted to this machine's clock.
    assert hub.failures == [{"ranks": [[1, -9]], "errors": [{**error, "at": pytest.approx(error["at"], abs=20.0)}]}]


def test_a_machine_that_disconnects_without_a_last_message_is_lost(hub, port):
    with LeaderLink(node_list(1, port), WAIT_SEC) as link:
        link.send_end({})
    hub.wait_for_nodes()
    assert hub.failures == []
    with LeaderLink(node_list(1, port), WAIT_SEC):
        pass
    wait_for(lambda: hub.failures)
    assert hub.failures == [{"gone": [1]}]


def test_after_a_failure_a_machine_waits_until_the_first_one_has_ended(port, tmp_path):
    """Guard against the Job stopping the first machine while it writes the result, because this pod has ended."""
    with NodeHub(node_list(0, port), 2, tmp_path) as hub, LeaderLink(node_list(1, port), WAIT_SEC) as link:
        sender = threading.Thread(target=link.send_end, args=({"ranks": [[1, -9]]},))
        sender.start()
        wait_for(lambda: hub.failures)
        assert sender.is_alive()
        hub.__exit__(None, None, None)
        sender.join(WAIT_SEC / 2)
        assert not sender.is_alive()


@pytest.mark.usefixtures("hub")
def test_unknown_clients_and_names_outside_the_folder_are_ignored(port, tmp_path):
    for hello in (b"GET / HTTP/1.1\r\n\r\n", b"[" * 50_000 + b"\n", b"7\n"):
        with socket.create_connection(("127.0.0.1", port + 1), timeout=WAIT_SEC) as client:
            client.sendall(hello)
            assert set(client.makefile("rb").read()) <= set(b".")  # heartbeats until the hub closes the connection
    with LeaderLink(node_list(1, port, token="guessed"), WAIT_SEC) as link, pytest.raises(LeaderGone):
        wait_for(link.check)
    with LeaderLink(node_list(1, port), WAIT_SEC) as link:
        link._send_file("../escaped.json", {"count": 1})
        link._send_file("trial.json", {"count": 1})
        link._send_file("rank-1.json", {"count": 1})
        wait_for(lambda: (tmp_path / "rank-1.json").exists())
        assert not (tmp_path.parent / "escaped.json").exists()
        assert not (tmp_path / "trial.json").exists()
        link.send_end({})


def test_the_others_notice_that_the_first_machine_has_ended(port, tmp_path):
    with NodeHub(node_list(0, port), 2, tmp_path):
        link = LeaderLink(node_list(1, port, address="localhost"), WAIT_SEC)
        link.check()
        assert link.address == "127.0.0.1", "the one that answered: a name may be that of a lost machine, too"
    with link, pytest.raises(LeaderGone, match="first machine"):
        wait_for(link.check)


def test_a_first_machine_that_goes_silent_counts_as_lost(port):
    server = socket.create_server(("127.0.0.1", port + 1))
    with server, LeaderLink(node_list(1, port), 0.5) as link, pytest.raises(LeaderGone, match=r"0\.5 s"):
        wait_for(link.check)
