"""The engine's client on the VM: what it says to a terminal and how it ends, with programs that play it."""

import subprocess
import sys
from pathlib import Path

import pytest

from remote.image.vm_agent import client
from remote.image.vm_agent.job import Failed, Watcher
from tests.support.machines.failures import fails

LAYERS = """
import sys, time
assert sys.stdout.isatty()
say = lambda text: (sys.stdout.write(text), sys.stdout.flush())
say("The push refers to repository [fra.ocir.io/ns/repo]\\n")
say("0123456789ab: Preparing\\nba9876543210: Preparing\\n")
for megabytes in (1, 2, 3, 4):
    say(f"\\x1b[1A\\x1b[2K\\r0123456789ab: Pushing [==>   ]  {megabytes}MB/4MB\\r\\x1b[1B")
    time.sleep(0.1)
say("\\x1b[1A\\x1b[2K\\r0123456789ab: Pushed\\r\\x1b[1B")
say("\\x1b[1A\\x1b[2K\\rba9876543210: Layer already exists\\r\\x1b[1B")
"""


@pytest.fixture
def watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watcher:
    monkeypatch.chdir(tmp_path)
    return Watcher()


def said(watcher: Watcher) -> list[str]:
    return [text for _, text in watcher.lines]


def test_a_push_says_how_many_bytes_have_gone(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SHOWN_EVERY_SEC", 0.05)
    code, lines = client.follow_push(watcher, [sys.executable, "-c", LAYERS], {}, "fra.ocir.io")
    assert code == 0
    assert lines[0] == "The push refers to repository [fra.ocir.io/ns/repo]"
    shown = said(watcher)
    assert any(" of 4.0 MB, " in line and "0 of 1 layers" in line for line in shown), shown
    assert {"0123456789ab: Pushed", "ba9876543210: Layer already exists"} <= set(shown)
    assert not any("Preparing" in line or "\x1b" in line for line in shown)


def test_a_push_that_fails_ends_with_the_clients_words_and_its_code(watcher: Watcher) -> None:
    script = "echo 'The push refers to repository [x]'; echo 'denied: no such right' >&2; exit 3"
    code, lines = client.follow_push(watcher, ["sh", "-c", script], {}, "fra.ocir.io")
    assert code == 3
    assert client.reason(lines, code).kind == "unauthorized"


def test_a_push_that_moves_nothing_is_named_and_ended_as_a_broken_connection(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "STALL_SHOWN_SEC", 0.5)
    monkeypatch.setattr(client, "STALL_ENDS_SEC", 1.5)
    script = "echo '0123456789ab: Pushing [=>  ]  1MB/4MB'; exec sleep 300"
    code, lines = client.follow_push(watcher, ["sh", "-c", script], {}, "fra.ocir.io")
    assert any("no byte has moved for" in line and "fra.ocir.io takes none" in line for line in said(watcher))
    assert "`inv push --cancel` stops it" in said(watcher)[-1]
    assert client.reason(lines, code).kind == "transient"


@pytest.mark.parametrize("to", ["", ">&2"])
def test_an_answer_without_end_is_ended_and_named(to: str) -> None:
    with pytest.raises(Failed, match=r"`sh -c exec yes.*printed more than 16 MiB"):
        client.bounded(["sh", "-c", f"exec yes {to}"], {})


def test_a_line_without_end_is_taken_in_pieces(watcher: Watcher) -> None:
    code, lines = client.follow(watcher, ["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x"], {})
    assert code == 0
    assert max(map(len, lines)) <= client.LINE_BYTES


def engine_that_says(complaint: str) -> list[str]:
    return ["sh", "-c", f"echo '{complaint}' >&2; exit 1"]


@pytest.mark.parametrize(("complaint", "kind", "says"), [
    ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
     "transient", "start it: sudo systemctl start docker"),
    ("Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
     "usage", r"sudo usermod -aG docker \$USER"),
    ("Error response from daemon: layer does not exist", "failed", "layer does not exist"),
])  # fmt: skip
def test_an_engine_that_cannot_answer_is_not_one_without_the_image(complaint: str, kind: str, says: str) -> None:
    with fails(kind, says):
        client.ask(engine_that_says(complaint), {}, "image", "inspect", "x")


@pytest.mark.parametrize("complaint", ["Error: No such image: x", "Error response from daemon: No such image: x"])
def test_an_image_that_is_not_there_is_none(complaint: str) -> None:
    assert client.ask(engine_that_says(complaint), {}, "image", "inspect", "x") is None


def test_a_client_that_is_told_nothing_ends_at_its_deadline() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        client.bounded(["sleep", "300"], {}, timeout_sec=0.1)
