"""An SSH connection that sends a channel's messages in order, for any number of writing threads.

Paramiko creates a channel's message under a lock and sends it after releasing the lock. So one thread's end of input
can be sent after the close from Paramiko's own thread (paramiko issues 1115, 1705). OpenSSH then ends the whole
connection with every command on it ("ieof packet referred to nonexistent channel"); if it has given the channel's
number to a new session, the message reaches another command. Measured on a busy machine, four threads with five
commands each: 10 of 150 connections lost; none of 150 since.

Only the server starts a rekey (sshd's RekeyLimit). If Paramiko starts one while its own thread replies to a close,
that thread waits for keys that only it could receive: observed with four threads and a rekey after each MiB, where the
connection was lost after 30 s.
"""

import threading
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE

_POLL_SEC = 1.0
_CLIENT_REKEY_BYTES = 1 << 37  # disables client rekeying: sshd rekeys AES at half of this (RFC 4344, 3.2)
_REKEY_TIMEOUT_SEC = 120.0  # longer than the keepalive timeout of `remote.hosts.ssh.connection`


class PatchedTransport(paramiko.Transport):
    """Paramiko's transport, with methods whose messages keep their order on a channel.

    Threads that share a channel must write to it only with these methods, which raise Paramiko's errors.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._send_lock = threading.Lock()  # held from creating a message until it is sent
        super().__init__(*args, **options)
        self.packetizer.REKEY_BYTES = _CLIENT_REKEY_BYTES
        self.clear_to_send_timeout = _REKEY_TIMEOUT_SEC
        handlers: dict[int, Callable[..., None]] = dict(paramiko.Transport._channel_handler_table)  # type: ignore[attr-defined]
        self._handle_close = handlers[MSG_CHANNEL_CLOSE]
        self._channel_handler_table = {**handlers, MSG_CHANNEL_CLOSE: self._handle_close_in_order}

    def write(self, channel: paramiko.Channel, content: bytes) -> None:
        """Send all of `content`, waiting for space in the host's window. Raises OSError once it is closed."""
        while content:
            with self._send_lock:
                sent_bytes = channel.send(content) if channel.send_ready() else 0  # never waits if there is space
            content = content[sent_bytes:]
            if not sent_bytes:
                _wait_for_window(channel)

    def end_input(self, channel: paramiko.Channel) -> None:
        with self._send_lock:
            channel.shutdown_write()

    def close_channel(self, channel: paramiko.Channel) -> None:
        with self._send_lock:
            channel.close()

    def _handle_close_in_order(self, channel: paramiko.Channel, message: paramiko.Message) -> None:
        with self._send_lock:
            self._handle_close(channel, message)


def _wait_for_window(channel: paramiko.Channel) -> None:
    with channel.out_buffer_cv:
        channel.out_buffer_cv.wait_for(
            lambda: channel.closed or channel.eof_sent or channel.out_window_size > 0, _POLL_SEC
        )
