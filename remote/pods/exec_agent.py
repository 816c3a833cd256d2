"""The program of one `kubectl exec`: runs a command in the pod and reports how it ended.

kubectl exec exits 0 with cut output when a kubelet or containerd dies, and hangs when a command leaves its input
unread, so kubectl's word does not count. `remote.pods.exec_protocol` sends this file on standard input and exchanges frames with
it. Standard output carries frames alone; standard error belongs to kubectl and the runtime.

    in    the request (4 bytes of length; fields apart by NUL), then input: 4 bytes of length, bytes; length 0 ends it
    out   the request's nonce and a line feed, then frames: one byte of channel, 4 bytes of length, bytes
          o standard output · e standard error · k nothing, a sign of life, where there was silence for a while ·
          x the end: exit code, why, CRC-32 of all of o, CRC-32 of all of e, CRC-32 of these

The kernel moves the output of a command that proves itself (files with their digests) from pipe to pipe: its frames
have a length, and a CRC of 0.

The caller keeps the input open until it has the end frame. If the input closes earlier, the caller is gone, and the
command is ended, which kubectl itself never does. A caller behind a dead network closes nothing, so the command's own
limits are enforced here, too.

Standard library, Python 3.9 or newer, Linux. The modules `signal`, `subprocess` and `json` would double this program's
cost. A third of the rest is its compilation, so the first one in a pod leaves a copy, which Python compiles once.
"""

from __future__ import annotations

import fcntl
import os
import select
import time
import zlib

PIECE = 1 << 18
PIPE_BYTES = 1 << 20  # what a pipe may hold: with the usual 64 kB, three processes take turns for every piece
FULL = 1 << 20  # bytes on their way in one direction before no more are taken in
GRACE_SEC = 2.0  # between TERM and KILL
DRAIN_SEC = 5.0  # for the rest of the input, once the command has ended
SIGTERM, SIGKILL, SIGPIPE = 15, 9, 13
F_SETPIPE_SZ = 1031  # fcntl has it by name from Python 3.10 on
FIONREAD = 0x541B  # how much waits in a pipe
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
    """One command's streams, both ways, until it has ended or is ended."""

    def __init__(self, deadline_sec: float, idle_sec: float | None, beat_sec: float, proves_itself: bool) -> None:
        self.began = self.heard = self.sent = time.monotonic()
        self.beat_sec = beat_sec
        self.passes_on = proves_itself and hasattr(os, "splice")  # from Python 3.10 on
        self.sums = {b"e": 0} if proves_itself else {b"o": 0, b"e": 0}
        self.deadline, self.idle_sec = self.began + deadline_sec, idle_sec
        self.pid = 0
        self.status: int | None = None
        self.why = "exited"
        self.kill_at: float | None = None
        self.sources: dict[int, bytes] = {}  # the pipes that the command writes to, and their channels
        self.to_child: int | None = None
        self.raw, self.pending, self.outgoing = bytearray(), bytearray(), bytearray()
        # A frame under way from pipe to pipe: its head, the pipe, and how much of it is still to go. `outgoing` waits.
        self.head, self.lent, self.owed = b"", -1, 0
        self.input_ended = self.caller_gone = False

    def spawn(self, argv: list[bytes], folder: bytes, takes_input: bool) -> None:
        """Start the command in a session of its own; one that cannot be started ends with 127, as in a shell."""
        out, err = os.pipe(), os.pipe()
        given = os.pipe() if takes_input else (os.open(os.devnull, os.O_RDONLY), None)
        try:
            if folder:
                os.chdir(folder)
            actions = [(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in enumerate((given[0], out[1], err[1]))]
            self.pid = os.posix_spawnp(
                argv[0], argv, os.environb, file_actions=actions, setsid=True, setsigdef=[SIGPIPE]
            )
        except OSError as error:
            self.status = 127 << 8
            self.frame(b"e", (os.fsdecode(error.filename or argv[0]) + ": " + (error.strerror or "")).encode())
        for fd in (given[0], out[1], err[1]):
            os.close(fd)
        for fd in (out[0], OUTPUT):
            try:  # noqa: SIM105 - contextlib costs 3 ms of every command
                fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:  # no pipe, or more than this user may have; it is slower without
                pass
        self.sources = {out[0]: b"o", err[0]: b"e"}
        self.to_child = given[1]
        if self.to_child is not None:
            os.set_blocking(self.to_child, False)

    def run(self) -> None:
        while self.sources or self.status is None:
            self.turn()
            if not self.sources and self.status is None:
                self.reap()
            if self.kill_at is not None and time.monotonic() > self.kill_at + GRACE_SEC:
                break  # what still holds the streams has left the command's session

    def turn(self) -> None:
        """Wait for the next event and handle it."""
        poll = select.poll()
        if not self.caller_gone:
            poll.register(INPUT, select.POLLIN if len(self.pending) < FULL else 0)  # a hang-up is reported in any case
        if self.outgoing or self.owed:
            poll.register(OUTPUT, select.POLLOUT)
        if self.to_child is not None and self.pending:
            poll.register(self.to_child, select.POLLOUT)
        if len(self.outgoing) < FULL and not self.owed:
            for source in self.sources:
                poll.register(source, select.POLLIN)
        for fd, what in poll.poll(1000 * self.wait_sec()):
            if fd == INPUT:
                self.hear(what)
            elif fd == OUTPUT:
                self.write(what)
            elif fd == self.to_child:
                self.feed()
            else:
                self.take(fd)
        if self.to_child is not None and self.input_ended and not self.pending:
            os.close(self.to_child)
            self.to_child = None
        self.keep_limits()

    def wait_sec(self) -> float:
        now = time.monotonic()
        due = self.deadline if self.kill_at is None else self.kill_at
        if self.idle_sec is not None and self.kill_at is None:
            due = min(due, self.heard + self.idle_sec)
        due = min(due, self.sent + self.beat_sec)
        return max(0.0, min(due - now, 1.0 if self.sources else 0.005))

    def keep_limits(self) -> None:
        now = time.monotonic()
        if self.owed or len(self.outgoing) >= FULL:
            self.heard = now  # the caller takes no more; the command is not silent
        if now >= self.sent + self.beat_sec:
            self.frame(b"k", b"")
        if self.kill_at is not None:
            if now >= self.kill_at:
                self.signal(SIGKILL)
        elif self.caller_gone:
            self.stop("caller-gone")
        elif now >= self.deadline:
            self.stop("deadline")
        elif self.idle_sec is not None and now >= self.heard + self.idle_sec and self.sources:
            self.stop("idle")

    def stop(self, why: str) -> None:
        self.why, self.kill_at = why, time.monotonic() + GRACE_SEC
        self.signal(SIGTERM)

    def signal(self, number: int) -> None:
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

    def hear(self, what: int) -> None:
        piece = os.read(INPUT, PIECE) if what & select.POLLIN else b""
        if not piece:
            self.caller_gone = True
            self.input_ended = True
            return
        self.raw += piece
        while len(self.raw) >= 4:
            size = int.from_bytes(self.raw[:4], "big")
            if size == 0:
                self.input_ended = True
            if len(self.raw) < 4 + size:
                break
            if self.to_child is not None:
                self.pending += self.raw[4 : 4 + size]
            del self.raw[: 4 + size]

    def feed(self) -> None:
        try:
            del self.pending[: os.write(self.to_child or -1, self.pending[:PIECE])]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # it reads no more; the rest of the input is read and dropped
            os.close(self.to_child or -1)
            self.to_child = None
            self.pending.clear()

    def take(self, source: int) -> None:
        if self.passes_on and self.sources[source] == b"o" and self.pass_on(source):
            return
        piece = os.read(source, PIECE)
        if not piece:
            os.close(source)
            del self.sources[source]
            return
        channel = self.sources[source]
        if channel == b"o":
            self.heard = time.monotonic()
        self.frame(channel, piece)

    def pass_on(self, source: int) -> bool:
        """Begin a frame of all that waits in `source`, without reading it; False if that is not possible."""
        size = int.from_bytes(fcntl.ioctl(source, FIONREAD, bytes(4)), "little")
        if not size or self.outgoing or self.owed or self.caller_gone:
            return False
        self.heard = self.sent = time.monotonic()
        self.head, self.lent, self.owed = b"o" + size.to_bytes(4, "big"), source, size
        self.write(select.POLLOUT)
        return True

    def frame(self, channel: bytes, content: bytes) -> None:
        if channel in self.sums:
            self.sums[channel] = zlib.crc32(content, self.sums[channel])
        self.sent = time.monotonic()
        if not self.caller_gone:
            head, gone = channel + len(content).to_bytes(4, "big"), 0
            if not self.outgoing and not self.owed:
                try:
                    gone = os.writev(OUTPUT, (head, content))
                except OSError:  # full or closed; `write` finds out which
                    gone = 0
            if gone < len(head) + len(content):
                self.outgoing += head[gone:]
                self.outgoing += memoryview(content)[max(0, gone - len(head)) :]

    def write(self, what: int) -> None:
        try:
            if what & (select.POLLERR | select.POLLHUP):
                raise BrokenPipeError
            while self.head:
                self.head = self.head[os.write(OUTPUT, self.head) :]
            while self.owed:
                self.splice()
            while self.outgoing:
                with memoryview(self.outgoing) as waiting:
                    gone = os.write(OUTPUT, waiting)
                del self.outgoing[:gone]
        except BlockingIOError:
            pass
        except OSError:
            self.caller_gone = True
            self.outgoing.clear()
            self.head, self.owed = b"", 0

    def splice(self) -> None:
        try:
            self.owed -= os.splice(self.lent, OUTPUT, self.owed, flags=2)  # SPLICE_F_NONBLOCK
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno != 22:  # EINVAL: the kernel cannot move a pipe's content to this standard output
                raise
            self.passes_on = False
            self.outgoing[:0] = os.read(self.lent, self.owed)
            self.owed = 0

    def finish(self) -> None:
        """Send the end frame and read the rest of the input: left unread, it would keep kubectl from ending."""
        status = self.status or 0
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        end = b"%d %s %08x %08x" % (code, self.why.encode(), self.sums.get(b"o", 0), self.sums[b"e"])
        self.frame(b"x", b"%s %08x" % (end, zlib.crc32(end)))
        self.to_child = None
        self.pending.clear()
        until = time.monotonic() + DRAIN_SEC
        while not self.caller_gone and (self.outgoing or not self.input_ended) and time.monotonic() < until:
            poll = select.poll()
            poll.register(INPUT, select.POLLIN)
            if self.outgoing:
                poll.register(OUTPUT, select.POLLOUT)
            for fd, what in poll.poll(1000 * max(0.0, until - time.monotonic())):
                (self.hear if fd == INPUT else self.write)(what)


def keep(path: str, content: bytes) -> None:
    """Leave this program at `path` for the next command, which can do without it."""
    temporary = f"{path}.{os.getpid()}.part"
    try:
        os.makedirs(path.rpartition("/")[0], exist_ok=True)  # noqa: PTH103 - pathlib costs 4 ms of every command
        with open(temporary, "wb") as file:  # noqa: PTH123
            file.write(content)
        os.replace(temporary, path)
    except OSError:  # a full disk, a folder that is not ours; it is slower without
        try:  # noqa: SIM105 - contextlib costs 3 ms of every command
            os.unlink(temporary)
        except OSError:
            pass


def main(path: str, content: bytes | None) -> None:
    """Run the request on standard input. `content` is this program if there is no copy at `path` yet."""
    request = read_exactly(int.from_bytes(read_exactly(4), "big")).split(b"\0")
    nonce, deadline, idle, beat, folder, takes_input, proves_itself, count = request[:8]
    for pair in request[8 : 8 + int(count)]:
        name, _, value = pair.partition(b"=")
        os.environb[name] = value
    os.set_blocking(OUTPUT, False)
    relay = Relay(float(deadline), float(idle) if idle else None, float(beat), bool(proves_itself))
    relay.outgoing += nonce + b"\n"
    relay.spawn(request[8 + int(count) :], folder, bool(takes_input))
    relay.run()
    relay.finish()
    if content is not None:
        keep(path, content)
    os._exit(0)
