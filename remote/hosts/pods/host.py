"""A pod as a host: every command is one `kubectl exec`, and counts only with its own end frame.

kubectl's exit code and the end of its streams prove nothing (measured: exit 0 and truncated output when a kubelet
dies). `remote.agent.pods.exec_relay` runs the command in the pod and frames its output; it describes the protocol. A
reply without its end frame or with a wrong checksum raises HostUnreachable, whatever kubectl's exit code.

The relay sends keepalives while the command is silent, so a silent stream is a broken one. The command does not outlive
the call: the relay kills it when its input closes or, behind a dead network, at its timeouts. Work that must outlive
the call is a job (`remote.jobs.job`).

Not covered: children of the command that leave its session, as on every host.
"""

import os
import secrets
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from bench.records.validation import setting
from remote.hosts.bundle import PYTHON_FLAGS, read_source
from remote.hosts.command import Command
from remote.hosts.host_protocol import (
    ByteReader,
    CommandTimedOut,
    Completed,
    Connector,
    FleetRequest,
    HostError,
    HostUnreachable,
)
from remote.hosts.local_program import BoundedOutput, CannotStart, run_program
from remote.hosts.pods.kubectl import Misconfigured, PodUnusable, Unreachable, not_installed_error, to_cluster_error
from remote.hosts.pods.pod_index import Pod, PodIndex

_PROGRAM = read_source("remote.agent.pods.exec_relay").encode()
# Go's garbage collector takes a tenth of an exec: 54.8 ms of CPU time, with 200 it is 49.8 ms and 2 MB more memory.
# The operator's GOGC has priority.
_ENVIRONMENT = {"GOGC": "200"}
SILENCE_SEC = 15.0
_FRAME_BYTES = 1 << 15
_MAX_FRAME_BYTES = 1 << 24
_MAX_END_BYTES = 1 << 10
_HEAD_BYTES = 5
_MARGIN_SEC = 5.0  # the pod's timeout, for a caller that is gone, comes later than ours
_HEARTBEATS_PER_SILENCE = 4  # a stream without any of them is broken
_NOT_STARTED_MESSAGES = ("executable file not found", "no such file or directory", "permission denied")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """End of a command: exit code (128 + n for signal n) and reason: exited, deadline, idle or caller-gone."""

    exit_code: int
    reason: str


def bootstrap(content: bytes) -> str:
    """Make the text for `python -c` in the pod, which reads the program from its input and runs it.

    It is short because argv is part of an HTTP request's URL, where proxies allow a few kB.
    """
    size = len(content)
    return f'import os;b=b""\nwhile len(b)<{size}:b+=os.read(0,{size}-len(b))or os._exit(74)\nexec(b)'


def encode_request(
    command: Command,
    nonce: str,
    *,
    takes_input: bool,
    timeout_sec: float,
    idle_timeout_sec: float | None,
    silence_sec: float,
) -> bytes:
    """Encode the command with its timeouts for `remote.agent.pods.exec_relay`: fields separated by NUL.

    `idle_timeout_sec` limits the command's silence, in the pod; `silence_sec` limits the stream's, on our side.
    """
    fields = [
        nonce,
        repr(timeout_sec + _MARGIN_SEC),
        "" if idle_timeout_sec is None else repr(idle_timeout_sec),
        repr(silence_sec / _HEARTBEATS_PER_SILENCE),
        command.folder or "",
        "1" if takes_input else "",
        str(len(command.environment)),
        *(f"{name}={value}" for name, value in command.environment.items()),
        *command.argv,
    ]
    content = b"\0".join(os.fsencode(field) for field in fields)
    return len(content).to_bytes(4, "big") + content


class Reply:
    """Decoder of the reply to one command. `on_stdout` receives its standard output, else `stdout` stores it.

    `name` is the host's, for messages.
    """

    def __init__(self, name: str, nonce: str, on_stdout: Callable[[bytes], None] | None = None) -> None:
        self._name, self._greeting = name, f"{nonce}\n".encode()
        self._on_stdout = on_stdout
        self._partial = bytearray()  # received part of the greeting, then of a frame's header
        self._channel, self._frame_left, self._end_content = b"", 0, bytearray()
        self.has_begun = False  # the greeting has arrived
        self._checksums = {b"o": 0, b"e": 0}
        self._stdout, self._stderr = BoundedOutput(name), BoundedOutput(name)
        self.ending: Ending | None = None

    @property
    def stdout(self) -> bytes:
        return bytes(self._stdout.content)

    @property
    def stderr(self) -> bytes:
        return bytes(self._stderr.content)

    def feed(self, piece: bytes) -> None:
        """Decode a chunk of the reply. Raises HostUnreachable if it is incomplete or damaged, and TooMuchOutput."""
        view = memoryview(piece)
        if not self.has_begun:
            view = self._read_greeting(view)
        while view:
            if not self._frame_left:
                view = self._read_frame_head(view)
                continue
            content, view = view[: self._frame_left], view[self._frame_left :]
            self._frame_left -= len(content)
            self._handle_content(bytes(content))

    def _read_greeting(self, view: memoryview) -> memoryview:
        missing = len(self._greeting) - len(self._partial)
        self._partial += view[:missing]
        if not self._greeting.startswith(self._partial):
            raise HostUnreachable(f"{self._name}: the reply is not from our program: {bytes(self._partial[:60])!r}")
        if len(self._partial) == len(self._greeting):
            self.has_begun = True
            self._partial.clear()
        return view[missing:]

    def _read_frame_head(self, view: memoryview) -> memoryview:
        missing = _HEAD_BYTES - len(self._partial)
        self._partial += view[:missing]
        if len(self._partial) == _HEAD_BYTES:
            self._channel, self._frame_left = bytes(self._partial[:1]), int.from_bytes(self._partial[1:], "big")
            self._partial.clear()
            is_known = not self._frame_left if self._channel == b"k" else self._channel in (b"o", b"e", b"x")
            if not is_known or self._frame_left > _MAX_FRAME_BYTES or self.ending is not None:
                raise HostUnreachable(f"{self._name}: the reply is corrupt")
        return view[missing:]

    def _handle_content(self, content: bytes) -> None:
        channel = self._channel
        if channel == b"x":
            if len(self._end_content) + len(content) > _MAX_END_BYTES:
                raise HostUnreachable(f"{self._name}: the reply is corrupt")
            self._end_content += content
            if not self._frame_left:
                self.ending = self._parse_end(bytes(self._end_content))
            return
        self._checksums[channel] = zlib.crc32(content, self._checksums[channel])
        if channel == b"e":
            self._stderr.append(content)
        elif self._on_stdout is None:
            self._stdout.append(content)
        else:
            self._on_stdout(content)

    def _parse_end(self, content: bytes) -> Ending:
        text, _, checksum = content.rpartition(b" ")
        try:
            if checksum != b"%08x" % zlib.crc32(text):
                raise ValueError
            code, reason, out, err = text.decode("ascii").split(" ")
            sums = (int(out, 16), int(err, 16))
            ending = Ending(exit_code=int(code), reason=reason)
        except ValueError as error:
            raise HostUnreachable(f"{self._name}: the end of the reply is corrupt") from error
        if sums != (self._checksums[b"o"], self._checksums[b"e"]):
            raise HostUnreachable(f"{self._name}: the reply does not match its checksum: part of it was lost")
        return ending


class RequestStream:
    """Standard input of kubectl: the program, the request, then `source` in frames. It stays open after that.

    The rest of `source` is not sent once the reply is complete.
    """

    def __init__(self, head: bytes, source: bytes | ByteReader | None, reply: Reply) -> None:
        self._head, self._reply, self._ended = head, reply, False
        self._file = None if source is None or isinstance(source, bytes) else source
        self._left = memoryview(source if isinstance(source, bytes) else b"")

    def read(self, _size: int, /) -> bytes | None:
        if self._ended:
            return None
        content, self._head = self._head, b""
        # Available bytes go with the head: each separate chunk is one more message for every server in between.
        while not content or (self._file is None and not self._ended and len(content) < _FRAME_BYTES):
            content += self._next_frame()
        return content

    def _next_frame(self) -> bytes:
        content = b"" if self._reply.ending is not None else self._next_chunk()
        self._ended = not content
        return len(content).to_bytes(4, "big") + content

    def _next_chunk(self) -> bytes:
        if self._file is not None:
            return self._file.read(_FRAME_BYTES)
        content, self._left = bytes(self._left[:_FRAME_BYTES]), self._left[_FRAME_BYTES:]
        return content


# --- the host ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PodHost:
    """Worker `index` of a fleet of pods: the current pod of that index.

    `workdir` is a folder in the pod's scratch, which dies with the pod: the jobs of a replaced pod are lost. A stream
    is broken after `silence_sec` without a keepalive; a new exec through a node that has just died took 14 s or more
    to fail.
    """

    name: str
    index: int
    pods: PodIndex
    workdir: str
    container: str
    python: tuple[str, ...] = ("python3",)
    silence_sec: float = SILENCE_SEC

    def run(
        self,
        command: Command,
        *,
        stdin: bytes | ByteReader | None = None,
        on_stdout: Callable[[bytes], None] | None = None,
        timeout_sec: float,
        idle_timeout_sec: float | None = None,
    ) -> Completed:
        """Run a command, see `remote.hosts.host_protocol.Host.run`. Exit code 127 if it cannot be started.

        Raises PodGone if no pod of this index lives, and ClusterError.
        """
        nonce, deadline = secrets.token_hex(16), time.monotonic() + timeout_sec
        pod = self._find_pod()
        reply = Reply(self.name, nonce, on_stdout)
        encoded_request = encode_request(
            command,
            nonce,
            takes_input=stdin is not None,
            timeout_sec=timeout_sec,
            idle_timeout_sec=idle_timeout_sec,
            silence_sec=self.silence_sec,
        )
        try:
            completed = run_program(
                self.exec_argv(pod),
                label=f"{self.name}: {command.brief()}",
                environment={**_ENVIRONMENT, **os.environ},
                stdin=RequestStream(_PROGRAM + encoded_request, stdin, reply),
                on_stdout=reply.feed,
                is_complete=lambda: reply.ending is not None,
                timeout_sec=timeout_sec,
                idle_timeout_sec=self.silence_sec,
            )
        except CannotStart as error:
            raise Misconfigured(f"{self.name}: {not_installed_error(error)}") from error
        except CommandTimedOut as error:
            self.pods.invalidate()
            if time.monotonic() >= deadline:
                raise
            raise HostUnreachable(f"{self.name}: no keepalive from {pod.name} for {self.silence_sec:g} s") from error
        if reply.ending is None:
            self.pods.invalidate()
            raise self._broken_stream_error(pod, reply, completed)
        if reply.ending.reason == "caller-gone":  # something else closed its input
            self.pods.invalidate()
            raise HostUnreachable(f"{self.name}: the stream to {pod.name} broke before the command's end")
        if reply.ending.reason != "exited":
            limit = f"silent for {idle_timeout_sec or 0:g} s" if reply.ending.reason == "idle" else "deadline passed"
            raise CommandTimedOut(f"{self.name}: {command.brief()}: {limit}")
        return Completed(exit_code=reply.ending.exit_code, stdout=reply.stdout, stderr=reply.stderr)

    def address(self) -> str:
        """Return the pod's current IP address. Raises like `run`."""
        pod = self._find_pod()
        if not pod.ip:
            raise HostUnreachable(f"{self.name}: {pod.name} has no address yet")
        return pod.ip

    def exec_argv(self, pod: Pod) -> tuple[str, ...]:
        """Return kubectl's argv, which is the same for every command."""
        inside = (*self.python, *PYTHON_FLAGS, "-c", bootstrap(_PROGRAM))
        return self.pods.kubectl.argv("exec", "--stdin", pod.name, f"--container={self.container}", "--", *inside)

    def _find_pod(self) -> Pod:
        try:
            return self.pods.find(self.index)
        except HostError as error:
            raise type(error)(f"{self.name}: {error.problem}", remedy=error.remedy) from error

    def _broken_stream_error(self, pod: Pod, reply: Reply, completed: Completed) -> HostError:
        if reply.has_begun:
            return HostUnreachable(f"{self.name}: the stream from {pod.name} broke before the command's end")
        error = to_cluster_error(
            f"{self.name}: kubectl exec in {pod.name}", completed.stderr.decode(errors="replace"), Unreachable
        )
        if any(sign in str(error) for sign in _NOT_STARTED_MESSAGES) and "exec failed" in str(error):
            return PodUnusable(str(error), remedy=f"its image needs {self.python[0]} (fleet.pods.python)")
        return error


@dataclass(frozen=True, kw_only=True)
class PodsSection:
    """Used if fleet.kind is pods; section cluster says where the cluster is."""

    selector: str = setting(
        "app.kubernetes.io/name=bench,app.kubernetes.io/component=worker", "label selector of the pods that are workers"
    )
    container: str = setting("bench", "container of a pod that runs trials")
    python: str = setting("python3", "Python 3.9 or newer in the image")
    scratch: str = setting(
        "/scratch/qlora-fleet",
        "writable folder of one pod, for running trials",
        pattern=r"^/",
        expected="an absolute path in the pod",
    )
    shared: str | None = setting(
        None,
        "folder for results that all pods share; null: /workspace/results if cluster.volume is set",
        pattern=r"^/",
        expected="an absolute path in the pod",
    )
    threads: int = setting(4, "CPU threads per trial; use the value of cluster.cpu", ge=1, le=256)


def make_hosts(request: FleetRequest) -> list[PodHost]:
    """Make a host for each pod of an Indexed Job."""
    options = request.options
    pods = PodIndex(request.kubectl, options.selector)
    return [
        PodHost(
            name=name,
            index=index,
            pods=pods,
            workdir=options.scratch,
            container=options.container,
            python=(options.python,),
        )
        for index, name in enumerate(request.names)
    ]


CONNECTOR = Connector(
    name="pods",
    is_local=False,
    is_cluster=True,
    silence_sec=SILENCE_SEC,
    max_streams=8,  # a stream to a pod is a kubectl process: 51 MiB resident, 15 of them not shared with the others
    make_hosts=make_hosts,
)
