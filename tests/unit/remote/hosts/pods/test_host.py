"""Tests of the limits of a reply. Whole streams are in tests/integration/remote/hosts/pods."""

import pytest

from remote.hosts import local_program
from remote.hosts.host_protocol import HostUnreachable, TooMuchOutput
from remote.hosts.pods.host import Reply

NONCE = "0" * 32


def frame(channel: bytes, content: bytes) -> bytes:
    return channel + len(content).to_bytes(4, "big") + content


@pytest.mark.parametrize("channel", [b"o", b"e"])
def test_output_that_is_kept_has_a_limit(channel: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_program, "MAX_OUTPUT_BYTES", 1 << 20)
    reply = Reply("worker-0", NONCE)
    reply.feed(f"{NONCE}\n".encode() + frame(channel, bytes(1 << 20)))
    with pytest.raises(TooMuchOutput, match=r"worker-0: .* 1 MiB"):
        reply.feed(frame(channel, b"x"))


def test_output_that_a_sink_receives_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_program, "MAX_OUTPUT_BYTES", 1 << 20)
    taken: list[int] = []
    reply = Reply("worker-0", NONCE, lambda piece: taken.append(len(piece)))
    reply.feed(f"{NONCE}\n".encode() + 3 * frame(b"o", bytes(1 << 20)))
    assert sum(taken) == 3 << 20
    assert reply.stdout == b""


def test_an_oversized_end_frame_is_refused() -> None:
    reply = Reply("worker-0", NONCE)
    reply.feed(f"{NONCE}\n".encode())
    with pytest.raises(HostUnreachable, match="worker-0: "):
        reply.feed(frame(b"x", bytes(1 << 20)))
