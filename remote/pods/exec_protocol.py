"""The near end of the protocol with `remote.pods.exec_agent`: writes the request, reads streams out of frames.

A reply is complete when its end frame has come and the check sums in it match everything before it; anything less is a
broken stream. kubectl's own word does not count.
"""

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from remote.hosts.bundle import digest
from remote.hosts.command import Command
from remote.hosts.host import ByteReader, HostUnreachable
from remote.hosts.process import BoundedOutput

_FRAME_BYTES = 1 << 15
_LARGEST_FRAME_BYTES = 1 << 24
_LONGEST_END_BYTES = 1 << 10
_HEAD_BYTES = 5
_MARGIN_SEC = 5.0  # the caller's own deadline passes first; the pod's is for a caller that is gone
_BEATS = 4  # signs of life that may go missing before a stream counts as broken


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the command ended: exit code (128 + n for signal n); `why` is exited, deadline, idle or caller-gone."""

    exit_code: int
    why: str


def bootstrap(content: bytes, workdir: str) -> str:
    """The text for `python -c` in the pod: it reads the program from its input and runs it, or the copy of it that an
    earlier command left in `workdir`.

    It is short because argv is in the address of an HTTP request, where proxies allow a few kB.
    """
    size, module = len(content), f"inpod_{digest(content)}"
    return (
        f'import os,sys;b=b""\nwhile len(b)<{size}:b+=os.read(0,{size}-len(b))or os._exit(74)\n'
        f"sys.path.append({workdir!r})\n"
        f"try:from {module} import main;b=None\n"
        'except Exception:g={};exec(b,g);main=g["main"]\n'
        f"main({f'{workdir}/{module}.py'!r},b)"
    )


def request(
    command: Command,
    nonce: str,
    *,
    takes_input: bool,
    timeout_sec: float,
    idle_timeout_sec: float | None,
    silence_sec: float,
) -> bytes:
    """The command with its limits, as `remote.pods.exec_agent` reads it: fields apart by NUL, which no Command holds.

    `idle_timeout_sec` is the command's and is enforced in the pod; `silence_sec` is the stream's and is enforced here.
    """
    fields = [
        nonce,
        repr(timeout_sec + _MARGIN_SEC),
        "" if idle_timeout_sec is None else repr(idle_timeout_sec),
        repr(silence_sec / _BEATS),
        command.folder or "",
        "1" if takes_input else "",
        "1" if command.proves_itself else "",
        str(len(command.environment)),
        *(f"{name}={value}" for name, value in command.environment.items()),
        *command.argv,
    ]
    content = b"\0".join(os.fsencode(field) for field in fields)
    return len(content).to_bytes(4, "big") + content


class Reply:
    """The reply to one command. `on_stdout` receives its standard output; without it `stdout` keeps it.

    `name` is the host's, for messages. Output that `proves_itself` has no check sum of ours.
    """

    def __init__(
        self,
        name: str,
        nonce: str,
        on_stdout: Callable[[bytes], None] | None = None,
        *,
        proves_itself: bool = False,
    ) -> None:
        self._name, self._greeting = name, f"{nonce}\n".encode()
        self._sink = on_stdout
        self._head = bytearray()  # the part received of the greeting, then of a frame's head
        self._channel, self._left, self._last = b"", 0, bytearray()
        self.has_begun = False  # the pod has answered
        self._summed = (b"e",) if proves_itself else (b"o", b"e")
        self._sums = {b"o": 0, b"e": 0}
        self._stdout, self._stderr = BoundedOutput(name), BoundedOutput(name)
        self.ending: Ending | None = None

    @property
    def stdout(self) -> bytes:
        return bytes(self._stdout.content)

    @property
    def stderr(self) -> bytes:
        return bytes(self._stderr.content)

    def feed(self, piece: bytes) -> None:
        """Take a piece of the reply. Raises HostUnreachable if it is incomplete or damaged, and TooMuchOutput."""
        view = memoryview(piece)
        if not self.has_begun:
            view = self._greet(view)
        while view:
            if not self._left:
                view = self._begin_frame(view)
                continue
            content, view = view[: self._left], view[self._left :]
            self._left -= len(content)
            self._take(bytes(content))

    def _greet(self, view: memoryview) -> memoryview:
        missing = len(self._greeting) - len(self._head)
        self._head += view[:missing]
        if not self._greeting.startswith(self._head):
            raise HostUnreachable(f"{self._name}: it is not our program that answers: {bytes(self._head[:60])!r}")
        if len(self._head) == len(self._greeting):
            self.has_begun = True
            self._head.clear()
        return view[missing:]

    def _begin_frame(self, view: memoryview) -> memoryview:
        missing = _HEAD_BYTES - len(self._head)
        self._head += view[:missing]
        if len(self._head) == _HEAD_BYTES:
            self._channel, self._left = bytes(self._head[:1]), int.from_bytes(self._head[1:], "big")
            self._head.clear()
            is_known = not self._left if self._channel == b"k" else self._channel in (b"o", b"e", b"x")
            if not is_known or self._left > _LARGEST_FRAME_BYTES or self.ending is not None:
                raise HostUnreachable(f"{self._name}: the answer was garbled on its way")
        return view[missing:]

    def _take(self, content: bytes) -> None:
        channel = self._channel
        if channel == b"x":
            if len(self._last) + len(content) > _LONGEST_END_BYTES:
                raise HostUnreachable(f"{self._name}: the answer was garbled on its way")
            self._last += content
            if not self._left:
                self.ending = self._end(bytes(self._last))
            return
        if channel in self._summed:
            self._sums[channel] = zlib.crc32(content, self._sums[channel])
        if channel == b"e":
            self._stderr.take(content)
        elif self._sink is None:
            self._stdout.take(content)
        else:
            self._sink(content)

    def _end(self, content: bytes) -> Ending:
        text, _, own = content.rpartition(b" ")
        try:
            if own != b"%08x" % zlib.crc32(text):
                raise ValueError
            code, why, out, err = text.decode("ascii").split(" ")
            sums = (int(out, 16), int(err, 16))
            ending = Ending(exit_code=int(code), why=why)
        except ValueError:
            raise HostUnreachable(f"{self._name}: the end of the answer was garbled on its way") from None
        if sums != (self._sums[b"o"], self._sums[b"e"]):
            raise HostUnreachable(
                f"{self._name}: the answer does not match its check sum: part of it was lost on its way"
            )
        return ending


class Outgoing:
    """Standard input for kubectl: the program, the request, then `source` in frames. It stays open after that.

    Once the reply is complete, the rest of `source` is not sent.
    """

    def __init__(self, head: bytes, source: bytes | ByteReader | None, reply: Reply) -> None:
        self._head, self._reply, self._ended = head, reply, False
        self._file = None if source is None or isinstance(source, bytes) else source
        self._left = memoryview(source if isinstance(source, bytes) else b"")

    def read(self, _size: int, /) -> bytes | None:
        if self._ended:
            return None
        content, self._head = self._head, b""
        # Bytes at hand go with the head: each piece of its own is one more message for every server on the way.
        while not content or (self._file is None and not self._ended and len(content) < _FRAME_BYTES):
            content += self._frame()
        return content

    def _frame(self) -> bytes:
        content = b"" if self._reply.ending is not None else self._next()
        self._ended = not content
        return len(content).to_bytes(4, "big") + content

    def _next(self) -> bytes:
        if self._file is not None:
            return self._file.read(_FRAME_BYTES)
        content, self._left = bytes(self._left[:_FRAME_BYTES]), self._left[_FRAME_BYTES:]
        return content
