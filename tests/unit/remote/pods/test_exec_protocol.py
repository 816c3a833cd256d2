"""What a reply may hold of a command's output. Whole streams are in tests/integration/remote/pods."""

import pytest

from remote.hosts import process
from remote.hosts.host import HostUnreachable, TooMuchOutput
from remote.pods.exec_protocol import Reply

NONCE = "0" * 32


def frame(channel: bytes, content: bytes) -> bytes:
    return channel + len(content).to_bytes(4, "big") + content


@pytest.mark.parametrize("channel", [b"o", b"e"])
def test_output_that_is_kept_has_a_limit(channel: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_KEPT_BYTES", 1 << 20)
    reply = Reply("worker-0", NONCE)
    reply.feed(f"{NONCE}\n".encode() + frame(channel, bytes(1 << 20)))
    with pytest.raises(TooMuchOutput, match="worker-0: printed more than 1 MiB; it was ended"):
        reply.feed(frame(channel, b"x"))


def test_output_that_somebody_takes_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_KEPT_BYTES", 1 << 20)
    taken: list[int] = []
    reply = Reply("worker-0", NONCE, lambda piece: taken.append(len(piece)))
    reply.feed(f"{NONCE}\n".encode() + 3 * frame(b"o", bytes(1 << 20)))
    assert sum(taken) == 3 << 20
    assert reply.stdout == b""


def test_an_end_of_the_answer_that_goes_on_and_on_is_no_answer() -> None:
    reply = Reply("worker-0", NONCE)
    reply.feed(f"{NONCE}\n".encode())
    with pytest.raises(HostUnreachable, match="garbled"):
        reply.feed(frame(b"x", bytes(1 << 20)))
