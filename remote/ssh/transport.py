"""An SSH connection whose channels end in order, whichever threads write to them.

Paramiko makes a channel's message under a lock and sends it after letting go of it. So the end of input that one
thread sends can leave after the close with which Paramiko's own thread answers the server (paramiko issues 1115, 1705).
OpenSSH then ends the whole connection, every other command with it ("ieof packet referred to nonexistent channel");
and where it has given the channel's number to a new session, the words arrive in another command. Measured on a busy
machine, four threads with five commands each: 10 of 150 connections lost; none of 150 since.

New keys are left to the server to begin (sshd's RekeyLimit). Where Paramiko begins, its own thread may be answering a
close that was on its way, and waits there for the new keys that it alone could receive: seen with four threads and new
keys for each MiB, where the connection was lost after 30 s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE

_LOOK_AGAIN_SEC = 1.0
_KEYS_LAST_BYTES = 1 << 37  # twice what the AES ciphers may carry (RFC 4344, 3.2) and sshd lets them: it is there first
_NEW_KEYS_SEC = 120.0  # longer than a connection without an answer lives (sshconnect): no word is given up before it


class OrderlyTransport(paramiko.Transport):
    """Paramiko's, with words for writing that nothing of the same channel can overtake.

    Whoever shares a channel among threads writes to it with these words alone. They raise what Paramiko does.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._in_order = threading.Lock()  # from making a message to having sent it
        super().__init__(*args, **options)
        self.packetizer.REKEY_BYTES = _KEYS_LAST_BYTES
        self.clear_to_send_timeout = _NEW_KEYS_SEC
        answers: dict[int, Callable[..., None]] = dict(paramiko.Transport._channel_handler_table)  # type: ignore[attr-defined]
        self._answer_close = answers[MSG_CHANNEL_CLOSE]
        self._channel_handler_table = {**answers, MSG_CHANNEL_CLOSE: self._close_in_order}

    def write(self, channel: paramiko.Channel, content: bytes) -> None:
        """Send all of `content`, waiting as the other side's window demands. Raises OSError once it is closed."""
        while content:
            with self._in_order:
                sent = channel.send(content) if channel.send_ready() else 0  # with a window it waits for nobody
            content = content[sent:]
            if not sent:
                _wait_for_window(channel)

    def end_input(self, channel: paramiko.Channel) -> None:
        """Say that nothing more is written."""
        with self._in_order:
            channel.shutdown_write()

    def hang_up(self, channel: paramiko.Channel) -> None:
        """Close the channel; nothing is said on it from now on."""
        with self._in_order:
            channel.close()

    def _close_in_order(self, channel: paramiko.Channel, message: paramiko.Message) -> None:
        with self._in_order:
            self._answer_close(channel, message)


def _wait_for_window(channel: paramiko.Channel) -> None:
    with channel.out_buffer_cv:
        channel.out_buffer_cv.wait_for(
            lambda: channel.closed or channel.eof_sent or channel.out_window_size > 0, _LOOK_AGAIN_SEC
        )
