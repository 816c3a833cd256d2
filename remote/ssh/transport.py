"""An SSH connection whose channels end in order, whichever threads write to them.

Paramiko makes a channel's message under a lock and sends it after releasing the lock. So one thread's end of input can
leave after the close that Paramiko's own thread sends (paramiko issues 1115, 1705). OpenSSH then ends the whole
connection with every command on it ("ieof packet referred to nonexistent channel"); if it has given the channel's
number to a new session, the message reaches another command. Measured on a busy machine, four threads with five
commands each: 10 of 150 connections lost; none of 150 since.

Only the server begins a change of keys (sshd's RekeyLimit). If Paramiko begins one while its own thread answers a
close, that thread waits for keys that only it could receive: seen with four threads and new keys for each MiB, where
the connection was lost after 30 s.
"""

import threading
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE

_LOOK_AGAIN_SEC = 1.0
_KEYS_LAST_BYTES = 1 << 37  # twice what the AES ciphers may carry (RFC 4344, 3.2) and sshd lets them: it is there first
_NEW_KEYS_SEC = 120.0  # longer than `remote.ssh.connection` lets a connection without an answer live


class PatchedTransport(paramiko.Transport):
    """Paramiko's, with methods whose messages keep their order on a channel.

    Threads that share a channel write to it with these methods alone. They raise what Paramiko does.
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
        with self._in_order:
            channel.shutdown_write()

    def hang_up(self, channel: paramiko.Channel) -> None:
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
