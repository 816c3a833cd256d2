"""Program of one `kubectl exec`: runs a command in the pod and reports its end.

kubectl exec exits 0 with truncated output when a kubelet or containerd dies, and hangs when a command leaves its input
unread, so its exit code is ignored. `remote.hosts.pods.host` sends this file on standard input and exchanges frames
with it. Standard output carries only frames; standard error belongs to kubectl and the runtime.

    in    the request (4 bytes of length, fields with NUL between them), then input: 4 bytes of length, bytes; length 0
          ends it
    out   the request's nonce and a line feed, then frames: one byte of channel, 4 bytes of length, bytes
          o standard output · e standard error · k empty keepalive, sent during silence ·
          x the end: exit code, reason, CRC-32 of all of o, CRC-32 of all of e, CRC-32 of these

The caller keeps the input open until it has the end frame. If the input closes earlier, the caller is gone and the
command is killed, which kubectl never does. A caller behind a dead network closes nothing, so the command's timeouts
are enforced here, too.

Standard library only, Python 3.9 or newer, Linux. The modules `signal`, `subprocess` and `json` would double this
program's cost.
"""

from __future__ import annotations

import fcntl
import os
import select
import time
import zlib

CHUNK_BYTES = 1 << 18
PIPE_BYTES = 1 << 20  # capacity of a pipe; the default of 64 kB causes more context switches between three processes
MAX_BUFFERED_BYTES = 1 << 20  # reading pauses above this, in each direction
GRACE_SEC = 2.0  # between TERM and KILL
DRAIN_SEC = 5.0  # for the rest of the input after the command's end
SIGTERM, SIGKILL, SIGPIPE = 15, 9, 13
F_SETPIPE_SZ = 1031  # in fcntl from Python 3.10
INPUT, OUTPUT = 0, 1


def read_exactly(size: int) -> bytes:
    content = b""
    while len(content) < size:
        piece = os.read(INPUT, size - len(content))
        if not piece:
            os._exit(74)
        content += piece
    return content


class Relay:
    """Relay between the caller and one command, until the command has ended or is killed."""

    def __init__(self, deadline_sec: float, idle_sec: float | None, heartbeat_sec: float) -> None:
        self.started_at = self.last_output_at = self.last_sent_at = time.monotonic()
        self.beat_sec = heartbeat_sec
        self.checksums = {b"o": 0, b"e": 0}
        self.deadline, self.idle_sec = self.started_at + deadline_sec, idle_sec
        self.pid = 0
        self.status: int | None = None
        self.end_reason = "exited"
        self.kill_at: float | None = None
        self.sources: dict[int, bytes] = {}  # the command's output pipes and their channels
        self.child_input: int | None = None
        self.received, self.input_queue, self.output_queue = bytearray(), bytearray(), bytearray()
        self.has_input_ended = self.is_caller_gone = False

    def spawn(self, argv: list[bytes], folder: bytes, takes_input: bool) -> None:
        """Start the command in its own session; exit code 127 if it cannot be started, as in a shell."""
        out, err = os.pipe(), os.pipe()
        child_stdin = os.pipe() if takes_input else (os.open(os.devnull, os.O_RDONLY), None)
        try:
            if folder:
                os.chdir(folder)
            streams = (child_stdin[0], out[1], err[1])
            actions = [(os.POSIX_SPAWN_DUP2, fd, child_fd) for child_fd, fd in enumerate(streams)]
            self.pid = os.posix_spawnp(
                argv[0], argv, os.environb, file_actions=actions, setsid=True, setsigdef=[SIGPIPE]
            )
        except OSError as error:
            self.status = 127 << 8
            self.send_frame(b"e", (os.fsdecode(error.filename or argv[0]) + ": " + (error.strerror or "")).encode())
        for fd in (child_stdin[0], out[1], err[1]):
            os.close(fd)
        for fd in (out[0], OUTPUT):
            try:  # noqa: SIM105 - contextlib costs 3 ms of every command
                fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:  # not a pipe, or over this user's limit; only slower
                pass
        self.sources = {out[0]: b"o", err[0]: b"e"}
        self.child_input = child_stdin[1]
        if self.child_input is not None:
            os.set_blocking(self.child_input, False)

    def run(self) -> None:
        while self.sources or self.status is None:
            self.poll_once()
            if not self.sources and self.status is None:
                self.reap()
            if self.kill_at is not None and time.monotonic() > self.kill_at + GRACE_SEC:
                break  # a process outside the command's session holds the streams

    def poll_once(self) -> None:
        """Wait for the next event and handle it."""
        poll = select.poll()
        if not self.is_caller_gone:
            has_room = len(self.input_queue) < MAX_BUFFERED_BYTES
            poll.register(INPUT, select.POLLIN if has_room else 0)  # POLLHUP is always reported
        if self.output_queue:
            poll.register(OUTPUT, select.POLLOUT)
        if self.child_input is not None and self.input_queue:
            poll.register(self.child_input, select.POLLOUT)
        if len(self.output_queue) < MAX_BUFFERED_BYTES:
            for source in self.sources:
                poll.register(source, select.POLLIN)
        for fd, events in poll.poll(1000 * self.wait_sec()):
            if fd == INPUT:
                self.read_input(events)
            elif fd == OUTPUT:
                self.write_output(events)
            elif fd == self.child_input:
                self.write_to_child()
            else:
                self.read_output(fd)
        if self.child_input is not None and self.has_input_ended and not self.input_queue:
            os.close(self.child_input)
            self.child_input = None
        self.enforce_limits()

    def wait_sec(self) -> float:
        now = time.monotonic()
        due = self.deadline if self.kill_at is None else self.kill_at
        if self.idle_sec is not None and self.kill_at is None:
            due = min(due, self.last_output_at + self.idle_sec)
        due = min(due, self.last_sent_at + self.beat_sec)
        return max(0.0, min(due - now, 1.0 if self.sources else 0.005))

    def enforce_limits(self) -> None:
        now = time.monotonic()
        if len(self.output_queue) >= MAX_BUFFERED_BYTES:
            self.last_output_at = now  # the caller does not read; the command is not silent
        if now >= self.last_sent_at + self.beat_sec:
            self.send_frame(b"k", b"")
        if self.kill_at is not None:
            if now >= self.kill_at:
                self.signal_group(SIGKILL)
        elif self.is_caller_gone:
            self.stop("caller-gone")
        elif now >= self.deadline:
            self.stop("deadline")
        elif self.idle_sec is not None and now >= self.last_output_at + self.idle_sec and self.sources:
            self.stop("idle")

    def stop(self, reason: str) -> None:
        self.end_reason, self.kill_at = reason, time.monotonic() + GRACE_SEC
        self.signal_group(SIGTERM)

    def signal_group(self, number: int) -> None:
        if self.pid:
            try:  # noqa: SIM105 - contextlib costs 3 ms of every command
                os.killpg(self.pid, number)
            except ProcessLookupError:
                pass

    def reap(self) -> None:
        if self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status

    def read_input(self, events: int) -> None:
        piece = os.read(INPUT, CHUNK_BYTES) if events & select.POLLIN else b""
        if not piece:
            self.is_caller_gone = True
            self.has_input_ended = True
            return
        self.received += piece
        while len(self.received) >= 4:
            size = int.from_bytes(self.received[:4], "big")
            if size == 0:
                self.has_input_ended = True
            if len(self.received) < 4 + size:
                break
            if self.child_input is not None:
                self.input_queue += self.received[4 : 4 + size]
            del self.received[: 4 + size]

    def write_to_child(self) -> None:
        try:
            del self.input_queue[: os.write(self.child_input or -1, self.input_queue[:CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # the command closed its input; the rest is read and dropped
            os.close(self.child_input or -1)
            self.child_input = None
            self.input_queue.clear()

    def read_output(self, source: int) -> None:
        piece = os.read(source, CHUNK_BYTES)
        if not piece:
            os.close(source)
            del self.sources[source]
            return
        channel = self.sources[source]
        if channel == b"o":
            self.last_output_at = time.monotonic()
        self.send_frame(channel, piece)

    def send_frame(self, channel: bytes, content: bytes) -> None:
        if channel in self.checksums:
            self.checksums[channel] = zlib.crc32(content, self.checksums[channel])
        self.last_sent_at = time.monotonic()
        if not self.is_caller_gone:
            head, written = channel + len(content).to_bytes(4, "big"), 0
            if not self.output_queue:
                try:
                    written = os.writev(OUTPUT, (head, content))
                except OSError:  # full or closed: `write_output` distinguishes
                    written = 0
            if written < len(head) + len(content):
                self.output_queue += head[written:]
                self.output_queue += memoryview(content)[max(0, written - len(head)) :]

    def write_output(self, events: int) -> None:
        try:
            if events & (select.POLLERR | select.POLLHUP):
                raise BrokenPipeError
            while self.output_queue:
                with memoryview(self.output_queue) as waiting:
                    written = os.write(OUTPUT, waiting)
                del self.output_queue[:written]
        except BlockingIOError:
            pass
        except OSError:
            self.is_caller_gone = True
            self.output_queue.clear()

    def finish(self) -> None:
        """Send the end frame and read the rest of the input; unread input would keep kubectl from ending."""
        status = self.status or 0
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        end = b"%d %s %08x %08x" % (code, self.end_reason.encode(), self.checksums[b"o"], self.checksums[b"e"])
        self.send_frame(b"x", b"%s %08x" % (end, zlib.crc32(end)))
        self.child_input = None
        self.input_queue.clear()
        deadline = time.monotonic() + DRAIN_SEC
        while (
            not self.is_caller_gone and (self.output_queue or not self.has_input_ended) and time.monotonic() < deadline
        ):
            poll = select.poll()
            poll.register(INPUT, select.POLLIN)
            if self.output_queue:
                poll.register(OUTPUT, select.POLLOUT)
            for fd, events in poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                (self.read_input if fd == INPUT else self.write_output)(events)


def main() -> None:
    """Run the request on standard input, after which this process ends."""
    request = read_exactly(int.from_bytes(read_exactly(4), "big")).split(b"\0")
    nonce, deadline, idle, beat, folder, takes_input, count = request[:7]
    for pair in request[7 : 7 + int(count)]:
        name, _, value = pair.partition(b"=")
        os.environb[name] = value
    os.set_blocking(OUTPUT, False)
    relay = Relay(float(deadline), float(idle) if idle else None, float(beat))
    relay.output_queue += nonce + b"\n"
    relay.spawn(request[7 + int(count) :], folder, bool(takes_input))
    relay.run()
    relay.finish()
    os._exit(0)


if __name__ == "__main__":
    main()
