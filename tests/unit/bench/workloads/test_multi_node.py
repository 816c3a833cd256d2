"""What the first machine of a gang takes from the others' word, and what it does not: no rank is started."""

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from bench.data.inputs import InputError
from bench.records import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from bench.workloads.distributed.multi_node import LeaderGone, LeaderLink, NodeHub, NodeList
from tests.support.faults import until

WAIT_SEC = 20.0
PLACE = {NODE_COUNT: "4", NODE_RANK: "2", NODE_ADDRESS: "10.0.0.7", NODE_PORT: "21000", NODE_TOKEN: "word"}


@pytest.fixture
def _place(monkeypatch) -> None:
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)


def machines(rank: int, port: int, **changes: str) -> NodeList:
    return NodeList(**({"count": 2, "rank": rank, "address": "127.0.0.1", "port": port, "token": "word"} | changes))


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1]) - 1


@pytest.fixture
def hub(port, tmp_path) -> Iterator[NodeHub]:
    with NodeHub(machines(0, port), 2, tmp_path) as hub:
        yield hub


@pytest.mark.usefixtures("_place")
def test_a_place_comes_from_the_environment_and_a_trial_on_one_machine_has_none(monkeypatch):
    found = NodeList.from_environment()
    assert found == NodeList(count=4, rank=2, address="10.0.0.7", port=21000, token="word")
    assert (found.ranks_here(4), found.ranks_here(8), found.ranks_here(8, 0)) == (range(2, 3), range(4, 6), range(2))
    for world_size in (2, 6):
        with pytest.raises(InputError, match=f"{world_size} ranks cannot be divided among 4 machines"):
            found.ranks_here(world_size)
    monkeypatch.setenv(NODE_COUNT, "1")
    assert NodeList.from_environment() is None
    monkeypatch.delenv(NODE_COUNT)
    assert NodeList.from_environment() is None


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (NODE_COUNT, "many", "expected a whole number from 1 to 1024, found 'many'"),
        (NODE_RANK, "4", "4 of 4 machines; they count from 0"),
        (NODE_RANK, "", "expected a whole number from 0 to 1023, found ''"),
        (NODE_PORT, "65535", "expected a whole number from 1 to 65534"),
        (NODE_ADDRESS, "", "not set"),
        (NODE_TOKEN, "", "not set"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused_by_name(monkeypatch, name, value, says):
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"{name}: {says}"):
        NodeList.from_environment()


def test_signs_errors_and_last_lines_are_laid_down_beside_the_local_ones(hub, port, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "rank-1.json").write_text('{"pid": 7, "count": 3, "phase": "measure", "step": 2}')
    (theirs / "error-1.json").write_text(json.dumps({"rank": 1, "kind": "failed", "reason": "no", "at": 5.0}))
    with LeaderLink(machines(1, port), 0.5) as link:
        link.mirror(theirs, range(1, 2), {1: ["last", "line"]})
        link.end({"ranks": [[1, -9]]})
    until(lambda: hub.has_failure)
    assert json.loads((tmp_path / "rank-1.json").read_text()) == {"count": 3, "phase": "measure", "step": 2}
    assert (tmp_path / "logs" / "1" / "stderr.log").read_text() == "last\nline"
    assert json.loads((tmp_path / "failures-1.json").read_text()) == {"ranks": [[1, -9]]}
    # Their clock said 5; here it is a moment of this machine's own.
    assert json.loads((tmp_path / "error-1.json").read_text())["at"] == pytest.approx(5.0, abs=WAIT_SEC)


def test_a_machine_that_goes_without_a_word_is_gone_and_one_that_says_good_bye_is_not(hub, port, tmp_path):
    with LeaderLink(machines(1, port), WAIT_SEC) as link:
        link.end({})
    hub.settle()
    assert not hub.has_failure
    with LeaderLink(machines(1, port), WAIT_SEC):
        pass
    until(lambda: hub.has_failure)
    assert json.loads((tmp_path / "failures-1.json").read_text()) == {"gone": [1]}


def test_after_a_failure_a_machine_stays_until_the_first_one_has_ended(port, tmp_path):
    """Its pod's end would have the Job stop the first machine, in the middle of writing down what has failed."""
    with NodeHub(machines(0, port), 2, tmp_path) as hub, LeaderLink(machines(1, port), WAIT_SEC) as link:
        last_word = threading.Thread(target=link.end, args=({"ranks": [[1, -9]]},))
        last_word.start()
        hub.settle()
        assert hub.has_failure
        assert last_word.is_alive()
        hub.__exit__(None, None, None)
        last_word.join(WAIT_SEC / 2)
        assert not last_word.is_alive()


def test_strangers_and_names_outside_the_folder_are_not_listened_to(hub, port, tmp_path):
    with socket.create_connection(("127.0.0.1", port + 1)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with LeaderLink(machines(1, port, token="guessed"), WAIT_SEC) as link, pytest.raises(LeaderGone):
        until(link.check)
    with LeaderLink(machines(1, port), WAIT_SEC) as link:
        link._file("../escaped.json", {"count": 1})
        link._file("failures-1.json", {"count": 1})
        link._file("rank-1.json", {"count": 1})
        until(lambda: (tmp_path / "rank-1.json").exists())
        assert not (tmp_path.parent / "escaped.json").exists()
        assert not hub.has_failure
        link.end({})


def test_the_others_notice_that_the_first_machine_has_ended(port, tmp_path):
    with NodeHub(machines(0, port), 2, tmp_path):
        link = LeaderLink(machines(1, port), WAIT_SEC)
        link.check()
    with link, pytest.raises(LeaderGone, match="the first machine"):
        until(link.check)


def test_a_first_machine_that_falls_silent_is_given_up(port):
    server = socket.create_server(("127.0.0.1", port + 1))
    with server, LeaderLink(machines(1, port), 0.5) as link, pytest.raises(LeaderGone, match=r"silent for 0\.5 s"):
        until(link.check)
