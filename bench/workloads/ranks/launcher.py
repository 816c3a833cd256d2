"""Launcher of a trial's ranks, for every ranked workload: starts them, follows them, and raises what ended them.

On several machines, the first one leads: it measures and writes. The others only run their share of the ranks.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bench.data.inputs import InputError
from bench.harness.record import Record
from bench.harness.termination import Stopped, StopSignals, WorkerGone
from bench.machine import nvml
from bench.records import Trial
from bench.workloads.ranks.multi_node import (
    JOIN_TIMEOUT_SEC,
    LeaderGone,
    LeaderLink,
    NodeHub,
    NodeList,
    input_error_code,
)
from bench.workloads.ranks.watch import RankFailed, RankLimits, RankOutOfMemory, Ranks

SILENCE_VARIABLE = "QLORA_FLEET_SILENCE_SEC"
SILENCE_SEC = 45.0  # a dead or hung rank then ends the trial within 60 s
STEP_MARGIN_SEC = 5.0  # report a silent rank before a hung step, because that report names the rank
MIN_TOKENS_PER_SEC = 364.0  # half the rate of an A10: a slower step counts as hung
POLL_SEC = 0.1
STOP_FILE = "stop"

OnLine = Callable[[dict[str, Any]], None]
T = TypeVar("T")


class RankLauncher:
    """Launcher of the ranks of a trial, each a process of `module`; with `nodes`, this machine's share of them.

    After a stop signal the ranks have `grace_sec` to end their current step, which STOP_FILE in their folder asks for.
    """

    def __init__(
        self,
        trial: Trial,
        stops: StopSignals,
        nodes: NodeList | None,
        *,
        module: str,
        limits: RankLimits,
        grace_sec: float = 0.0,
    ) -> None:
        self._trial, self._stops, self._nodes = trial, stops, nodes
        self._module, self._limits, self._grace_sec = module, limits, grace_sec
        self.backend = ""

    def check(self) -> None:
        """Choose the backend. Raises InputError for too few GPUs."""
        self.backend = choose_backend(self._trial, len(nvml.visible_gpus()), self._nodes)

    @contextlib.contextmanager
    def started(self) -> Iterator[Ranks]:
        """Start this machine's ranks, after `check`. They are ended with the context."""
        with contextlib.ExitStack() as stack:
            with self._stops.deferred():  # a stop while the ranks are being started would leave them running
                trial, module = self._trial, self._module
                ranks = stack.enter_context(Ranks(trial, self.backend, self._limits, self._nodes, module=module))
            yield ranks

    def lead(
        self,
        ranks: Ranks,
        record: Record,
        on_line: OnLine,
        *,
        has_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run `started` ranks to their end, and call `on_line` with each of rank 0's lines.

        Once `has_stopped` returns True, rank 0 has reported an orderly end, and a rank's exit code does not count.
        Raises RankFailed, WorkerGone and RankOutOfMemory with the rank's number, Stopped, and a rank's InputError.
        """
        nodes, world_size = self._nodes, self._trial.world_size
        with contextlib.nullcontext() if nodes is None else NodeHub(nodes, world_size, ranks.folder) as hub:
            try:
                self._await_end(record, ranks, hub, on_line, has_stopped)
            except Stopped as stopped:
                if self._end_step(stopped, ranks.folder, ranks.poll):
                    ranks.dispatch_lines(on_line)
                raise

    def _await_end(
        self, record: Record, ranks: Ranks, hub: NodeHub | None, on_line: OnLine, has_stopped: Callable[[], bool]
    ) -> None:
        """Process the ranks' lines until they have ended. Raises what ended them."""
        try:
            code = self.follow_ranks(ranks, hub, on_line)
            self._stops.check()
            if hub is not None and code == 0:
                hub.wait_for_nodes(self._limits.silence_sec)
            if code != 0 and not has_stopped():
                self._stops.close()  # the outcome is known: ignore a SIGTERM that follows from it
                if hub is not None:
                    hub.wait_for_nodes()
                    ranks.check_progress()
                raise ranks.failure()
        except (RankFailed, WorkerGone, RankOutOfMemory) as error:
            ranks.dispatch_lines(on_line)
            log_failure(record, ranks, error)
            raise

    def follow_ranks(self, ranks: Ranks, hub: NodeHub | None, on_line: OnLine) -> int | None:
        """Dispatch rank 0's lines until the ranks end or another machine reports a failure; return what `poll` does."""
        while (code := ranks.poll()) is None and not (hub is not None and hub.has_failure):
            with self._stops.deferred():  # an interrupted line would be half processed and not dispatched again
                ranks.dispatch_lines(on_line)
            ranks.check_progress()
            time.sleep(POLL_SEC)
        with self._stops.deferred():
            ranks.dispatch_lines(on_line)
        return code

    def _end_step(self, stopped: Stopped, folder: Path, poll: Callable[[], int | None]) -> bool:
        """Let the ranks end their current step; return False if they may not, such as on a faulty GPU."""
        if not self._grace_sec or stopped.code.is_worker_faulty:
            return False
        (folder / STOP_FILE).touch()
        deadline = time.monotonic() + self._grace_sec
        while poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SEC)
        return True

    def follow(self, check_inputs: Callable[[], T], prepare: Callable[[T], Mapping[str, str]] = lambda _: {}) -> int:
        """Run this machine's share of the ranks; return the exit code. Only the first machine measures and writes.

        `check_inputs` is called before this machine waits for the first one; `prepare` gets its result after that, and
        returns the ranks' files. Raises InputError and Stopped.
        """
        nodes = self._nodes
        if nodes is None:
            raise ValueError("a single machine follows no other")
        mine = nodes.local_ranks(self._trial.world_size)
        try:
            inputs = check_inputs()
            self.check()
        except (InputError, Stopped) as error:
            timeout_sec = JOIN_TIMEOUT_SEC if isinstance(error, InputError) else 0.0
            with (
                contextlib.suppress(LeaderGone, Stopped),
                LeaderLink(nodes, self._limits.silence_sec, join_timeout_sec=timeout_sec) as link,
            ):
                _send_refusal(link, mine, error)
            raise
        try:
            with LeaderLink(nodes, self._limits.silence_sec) as link:
                self._nodes = replace(nodes, address=link.address)
                try:
                    files = prepare(inputs)
                except (InputError, Stopped) as error:
                    _send_refusal(link, mine, error)
                    raise
                with self.started() as ranks:
                    ranks.write_files(files)
                    return self._follow_leader(ranks, link, mine)
        except LeaderGone as gone:
            print(f"{gone}; ranks {mine[0]} to {mine[-1]} were ended", file=sys.stderr)
            return 1

    def _follow_leader(self, ranks: Ranks, link: LeaderLink, mine: range) -> int:
        """Send the ranks' files to the first machine until the ranks or the first machine end."""

        def poll() -> int | None:
            code = ranks.poll()
            if code is None:  # ranks that have succeeded no longer need the first machine
                link.check()
            link.send_changes(ranks.folder, mine, {rank: ranks.last_lines(rank) for rank in mine})
            return code

        try:
            while (code := poll()) is None:
                self._stops.check()
                time.sleep(POLL_SEC)
        except Stopped as stopped:
            self._end_step(stopped, ranks.folder, poll)
            # Sent before these ranks are killed: otherwise the first machine would report a failure.
            _send_stop(link, mine, stopped, has_ended_step=poll() == 0)
            raise
        poll()
        link.send_end({"ranks": [], **ranks.local_failures()} if code else {})
        return 0 if code == 0 else 1


def _send_refusal(link: LeaderLink, ranks: range, error: InputError | Stopped) -> None:
    """Tell the first machine why this one starts no ranks: otherwise it would count as lost."""
    if isinstance(error, InputError):
        link.report_error(ranks[0], input_error_code(error), str(error))
    else:
        _send_stop(link, ranks, error)


def _send_stop(link: LeaderLink, ranks: range, stopped: Stopped, *, has_ended_step: bool = False) -> None:
    """Tell the first machine why this one's ranks end."""
    if stopped.code.is_worker_faulty:
        link.report_error(ranks[0], stopped.code, str(stopped))
    else:
        link.send_end({} if has_ended_step else {"stopped": list(ranks)})


def log_failure(record: Record, ranks: Ranks, error: Exception) -> None:
    """Log the failure and every rank's last lines in the record."""
    record.log(str(error))
    if isinstance(error, RankOutOfMemory):
        record.peak_vram_bytes, record.peak_rss_bytes = error.peak_vram_bytes, error.peak_rss_bytes
    for rank in range(record.trial.world_size):
        for line in ranks.last_lines(rank):
            record.log(f"rank {rank}: {line}")


def choose_backend(trial: Trial, gpus: int, nodes: NodeList | None = None) -> str:
    """Return nccl with a GPU for every rank, gloo without any GPU. Raises InputError for too few GPUs."""
    if gpus == 0:
        return "gloo"
    local = trial.world_size if nodes is None else len(nodes.local_ranks(trial.world_size))
    if gpus < local:
        raise InputError(
            f"world_size: {local} ranks need one GPU each, this machine has {gpus}",
            remedy=f"choose a trial with at most {gpus} ranks, or a machine with more GPUs",
        )
    return "nccl"


def make_limits(trial: Trial) -> RankLimits:
    """Compute the limits: a rank counts as hung after 45 s, a step after 50 s or the time a slow GPU needs for it."""
    text = os.environ.get(SILENCE_VARIABLE, str(SILENCE_SEC))
    try:
        silence = float(text)
    except ValueError:
        silence = -1.0
    if not 1.0 <= silence <= 3600.0:
        raise InputError(f"{SILENCE_VARIABLE}: expected 1 to 3600 seconds, found {text!r}")
    slowest_sec = trial.tokens_per_step / MIN_TOKENS_PER_SEC
    return RankLimits(silence_sec=silence, step_sec=max(silence + STEP_MARGIN_SEC, slowest_sec))
