"""A pod as a host: every command is one `kubectl exec`, and counts only with its own end frame.

kubectl's exit code and the end of its streams prove nothing (measured: exit 0 and cut output when a kubelet dies).
`remote.pods.exec_agent` runs the command in the pod and frames its output. A reply without its end frame or with a wrong
check sum is HostUnreachable, never an exit code.

far_end sends a sign of life into every pause of the command, so a silent stream is a broken one. The command does not
outlive the call: far_end ends it when its input closes and, where a dead network hides that, at the limits sent along.
What must outlive the call is a job (`remote.jobs.job`).

Not covered: children of the command that leave its session, as on every host.
"""

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from remote.cluster.errors import KubectlUnusable, Misconfigured, Unreachable
from remote.cluster.kubectl import not_installed, refusal
from remote.hosts.bundle import PYTHON_FLAGS, source
from remote.hosts.command import Command
from remote.hosts.host import ByteReader, CommandTimedOut, Completed, HostError, HostUnreachable
from remote.hosts.process import CannotStart, run_program
from remote.pods.exec_protocol import Outgoing, Reply, bootstrap, request
from remote.pods.pod_index import Pod, Pods

_PROGRAM = source("remote.pods.exec_agent").encode()
# Go's garbage collector took a tenth of an exec: measured, 54.8 ms of processor time, 49.8 ms with 200 and 2 MB more.
# A GOGC that the operator has set is kept.
_ENVIRONMENT = {"GOGC": "200"}
_NOT_STARTED = ("executable file not found", "no such file or directory", "permission denied")


@dataclass(frozen=True, kw_only=True)
class PodHost:
    """The worker `index` of a fleet of pods: whichever pod holds that index now.

    `workdir` is a folder in the pod's scratch, which dies with the pod: jobs of a pod that was replaced are absent, so
    lost. A stream is given up after `silence_sec` without a sign of life; a new exec through a node that has just died
    was seen to take 14 s and more to fail.
    """

    name: str
    index: int
    pods: Pods
    workdir: str
    container: str
    python: tuple[str, ...] = ("python3",)
    silence_sec: float = 15.0

    def run(
        self,
        command: Command,
        *,
        stdin: bytes | ByteReader | None = None,
        on_stdout: Callable[[bytes], None] | None = None,
        timeout_sec: float,
        idle_timeout_sec: float | None = None,
    ) -> Completed:
        """See `remote.hosts.host.Host.run`. A program that cannot be started ends with 127, as on this machine.

        Raises PodGone if the cluster shows no living pod of this index, and ClusterError.
        """
        nonce, deadline = secrets.token_hex(16), time.monotonic() + timeout_sec
        pod = self._find()
        reply = Reply(self.name, nonce, on_stdout, proves_itself=command.proves_itself)
        asked = request(
            command,
            nonce,
            takes_input=stdin is not None,
            timeout_sec=timeout_sec,
            idle_timeout_sec=idle_timeout_sec,
            silence_sec=self.silence_sec,
        )
        try:
            carried = run_program(
                self.exec_argv(pod),
                label=f"{self.name}: {command.brief()}",
                environment={**_ENVIRONMENT, **os.environ},
                stdin=Outgoing(_PROGRAM + asked, stdin, reply),
                on_stdout=reply.feed,
                is_complete=lambda: reply.ending is not None,
                timeout_sec=timeout_sec,
                idle_timeout_sec=self.silence_sec,
            )
        except CannotStart as error:
            raise Misconfigured(f"{self.name}: {not_installed(error)}") from None
        except CommandTimedOut:
            self.pods.invalidate()
            if time.monotonic() >= deadline:
                raise
            raise HostUnreachable(f"{self.name}: no sign of life from {pod.name} for {self.silence_sec:g} s") from None
        if reply.ending is None:
            self.pods.invalidate()
            raise self._broken(pod, reply, carried)
        if reply.ending.why == "caller-gone":  # its input closed, but not by us
            self.pods.invalidate()
            raise HostUnreachable(f"{self.name}: the stream to {pod.name} broke before the command's end")
        if reply.ending.why != "exited":
            limit = f"silent for {idle_timeout_sec or 0:g} s" if reply.ending.why == "idle" else "not done in time"
            raise CommandTimedOut(f"{self.name}: {command.brief()}: {limit}")
        return Completed(exit_code=reply.ending.exit_code, stdout=reply.stdout, stderr=reply.stderr)

    def address(self) -> str:
        """The address at which other pods reach this one now. Raises as `run` does."""
        pod = self._find()
        if not pod.ip:
            raise HostUnreachable(f"{self.name}: {pod.name} has no address yet")
        return pod.ip

    def exec_argv(self, pod: Pod) -> tuple[str, ...]:
        """The command that carries every other; its argv does not show what is run."""
        inside = (*self.python, *PYTHON_FLAGS, "-c", bootstrap(_PROGRAM, self.workdir))
        return self.pods.kubectl.argv("exec", "--stdin", pod.name, f"--container={self.container}", "--", *inside)

    def _find(self) -> Pod:
        try:
            return self.pods.find(self.index)
        except HostError as error:
            raise type(error)(f"{self.name}: {error}") from error

    def _broken(self, pod: Pod, reply: Reply, carried: Completed) -> HostError:
        if reply.has_begun:
            return HostUnreachable(f"{self.name}: the stream from {pod.name} broke before the command's end")
        error = refusal(
            f"{self.name}: kubectl exec in {pod.name}", carried.stderr.decode(errors="replace"), Unreachable
        )
        if any(sign in str(error) for sign in _NOT_STARTED) and "exec failed" in str(error):
            return KubectlUnusable(f"{error}; its image needs {self.python[0]} (fleet.pods.python)")
        return error
