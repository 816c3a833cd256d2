"""A pod as a host: every command is one `kubectl exec`, and counts only with its own end frame.

kubectl's exit code and the end of its streams prove nothing (measured: exit 0 and truncated output when a kubelet
dies). `remote.agent.scripts.exec_relay` runs the command in the pod and frames its output. A reply without its end
frame or with a wrong checksum raises HostUnreachable.

The relay sends keepalives while the command is silent, so a silent stream is a broken one. The command does not outlive
the call: the relay kills it when its input closes or, behind a dead network, at its timeouts. Work that must outlive
the call is a job (`remote.jobs.job`).

Not covered: children of the command that leave its session, as on every host.
"""

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from remote.hosts.base import (
    ByteReader,
    CommandTimedOut,
    Completed,
    Connector,
    FleetRequest,
    HostError,
    HostUnreachable,
)
from remote.hosts.bundle import PYTHON_FLAGS, read_source
from remote.hosts.command import Command
from remote.hosts.pods.errors import Misconfigured, PodUnusable, Unreachable
from remote.hosts.pods.exec_protocol import Reply, RequestStream, bootstrap, encode_request
from remote.hosts.pods.kubectl import not_installed_error, to_cluster_error
from remote.hosts.pods.pod_index import Pod, PodIndex
from remote.hosts.process import CannotStart, run_program

_PROGRAM = read_source("remote.agent.scripts.exec_relay").encode()
# Go's garbage collector takes a tenth of an exec: 54.8 ms of CPU time, with 200 it is 49.8 ms and 2 MB more memory.
# The operator's GOGC has priority.
_ENVIRONMENT = {"GOGC": "200"}
SILENCE_SEC = 15.0
_NOT_STARTED_MESSAGES = ("executable file not found", "no such file or directory", "permission denied")


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
        """Run a command, see `remote.hosts.base.Host.run`. Exit code 127 if it cannot be started.

        Raises PodGone if no pod of this index lives, and ClusterError.
        """
        nonce, deadline = secrets.token_hex(16), time.monotonic() + timeout_sec
        pod = self._find_pod()
        reply = Reply(self.name, nonce, on_stdout, is_self_verifying=command.is_self_verifying)
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
        inside = (*self.python, *PYTHON_FLAGS, "-c", bootstrap(_PROGRAM, self.workdir))
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


class PodConnector(Connector):
    """Pods of an Indexed Job. `options`: `selector`, `container`, `python`, and `scratch`, a folder in the pod."""

    name, is_local, is_cluster = "pods", False, True
    silence_sec = SILENCE_SEC
    max_streams = 8  # a stream to a pod is a kubectl process: 51 MiB resident, 15 of them not shared with the others

    def make_hosts(self, request: FleetRequest, *, include_starting: bool = False) -> list[PodHost]:
        """Make the hosts. `include_starting`: also of pods that are not Ready yet."""
        options = request.options
        pods = PodIndex(request.kubectl, options.selector, include_starting=include_starting)
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
