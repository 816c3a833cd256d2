"""Launcher of a trial's ranks, for every ranked workload: starts them, follows them, and raises what ended them.

On several machines, the first one leads: it measures and writes. The others only run their share of the ranks.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from bench.data.inputs import InputError
from bench.harness.record import Record
from bench.harness.termination import Stopped, StopSignals, WorkerGone
from bench.machine import nvml
from bench.records import Trial
from bench.workloads.ranks.multi_node import JOIN_TIMEOUT_SEC, LeaderGone, LeaderLink, NodeHub, NodeList
from bench.workloads.ranks.watch import RankFailed, RankLimits, RankOutOfMemory, Ranks

SILENCE_VARIABLE = "QLORA_FLEET_SILENCE_SEC"  # set by tests
SILENCE_SEC = 45.0  # a dead or hung rank then ends the trial within 60 s
STEP_MARGIN_SEC = 5.0  # report a silent rank before a hung step, because that report names the rank
# A slower step, or row of a fine-tuning, counts as hung: half the rate of an A10, and a quarter of the rate of a shared
# core with 135 million weights.
MIN_TOKENS_PER_SEC = {"gpu": 364.0, "tiny": 1.0}
POLL_SEC = 0.1
STOP_FILE = "stop"

OnLine = Callable[[dict[str, Any]], None]
T = TypeVar("T")


class RankLauncher:
    """Launcher of the ranks of a trial, each a process of `module`; with `nodes`, this machine's share of them.

    After a stop signal the ranks have `grace_sec` to end their current step, which STOP_FILE in their folder asks for.
    """

    def __init__(
        self, trial: Trial, stops: StopSignals, nodes: NodeList | None, *, module: str, grace_sec: float = 0.0
    ) -> None:
        self._trial, self._stops, self._nodes = trial, stops, nodes
        self._module, self._limits, self._grace_sec = module, make_limits(trial), grace_sec
        self.backend = ""

    @contextlib.contextmanager
    def started(self) -> Iterator[Ranks]:
        """Start this machine's ranks. They are ended with the context. Raises InputError for too few GPUs."""
        self.backend = choose_backend(self._trial, len(nvml.visible_gpus()), self._nodes)
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
                code = self.follow_ranks(ranks, hub, on_line)
                self._stops.check()
                if hub is not None and code == 0:
                    hub.wait_for_nodes(self._limits.silence_sec)
                if code != 0 and not has_stopped():
                    self._stops.close()  # the outcome is known: ignore a SIGTERM that follows from it
                    if hub is not None:
                        hub.wait_for_nodes()
                        ranks.check_progress()
                    raise ranks.failure([] if hub is None else hub.failures)
            except Stopped as stopped:
                if self._end_step(stopped, ranks, ranks.poll):
                    ranks.dispatch_lines(on_line)
                raise
            except (RankFailed, WorkerGone, RankOutOfMemory) as error:
                ranks.dispatch_lines(on_line)
                log_failure(record, ranks, error)
                raise

    def follow_ranks(self, ranks: Ranks, hub: NodeHub | None, on_line: OnLine) -> int | None:
        """Dispatch rank 0's lines until the ranks end or another machine reports a failure; return what `poll` does."""
        while (code := ranks.poll()) is None and not (hub is not None and hub.failures):
            with self._stops.deferred():  # an interrupted line would be half processed and not dispatched again
                ranks.dispatch_lines(on_line)
            ranks.check_progress()
            time.sleep(POLL_SEC)
        with self._stops.deferred():
            ranks.dispatch_lines(on_line)
        return code

    def _end_step(self, stopped: Stopped, ranks: Ranks, poll: Callable[[], int | None]) -> bool:
        """Let the ranks end their current step; return False if they may not, such as on a faulty GPU."""
        if not self._grace_sec or stopped.code.is_worker_faulty:
            return False
        (ranks.folder / STOP_FILE).touch()
        deadline = time.monotonic() + self._grace_sec
        while poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SEC)
        return True

    def follow(self, check_inputs: Callable[[], T], prepare: Callable[[T], Mapping[str, str]] = lambda _: {}) -> int:
        """Run this machine's share of the ranks; return the exit code. Only the first machine measures and writes.

        `check_inputs` is called before this machine waits for the first one; `prepare` gets its result after that, and
        returns the ranks' files. Raises InputError and Stopped, once the first machine knows why no ranks run here:
        otherwise this machine would count as lost.
        """
        nodes = self._nodes
        refusal: InputError | Stopped | None = None
        if nodes is None:
            raise ValueError("a single machine follows no other")
        mine = nodes.local_ranks(self._trial.world_size)
        try:
            inputs = check_inputs()
        except (InputError, Stopped) as error:
            refusal = error
        timeout_sec = 0.0 if isinstance(refusal, Stopped) else JOIN_TIMEOUT_SEC
        try:
            with (
                LeaderLink(nodes, self._limits.silence_sec, join_timeout_sec=timeout_sec) as link,
                contextlib.ExitStack() as stack,
            ):
                self._nodes = replace(nodes, address=link.address)
                try:
                    if refusal is not None:
                        raise refusal
                    ranks = stack.enter_context(self.started())
                    ranks.write_files(prepare(inputs))
                except (InputError, Stopped) as error:
                    link.send_end(_last_message(mine, error))
                    raise
                return self._follow_leader(ranks, link, mine)
        except LeaderGone as gone:
            if refusal is not None:
                raise refusal from gone
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
            self._end_step(stopped, ranks, poll)
            message = _last_message(mine, stopped)
            # Sent before these ranks are killed: otherwise the first machine would report a failure.
            link.send_end({} if poll() == 0 and "stopped" in message else message)
            raise
        poll()
        link.send_end(ranks.local_failures())
        return 0 if code == 0 else 1


def _last_message(ranks: range, error: InputError | Stopped) -> dict[str, list[Any]]:
    """Return the failures of ranks that end because of `error`."""
    code = error.code if isinstance(error, Stopped) else error.reason_code
    if not (code.is_worker_faulty or code.is_rejected):
        return {"stopped": list(ranks)}
    return {"errors": [{"rank": ranks[0], "reason_code": code, "reason": str(error), "at": time.monotonic()}]}


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
    silence = float(os.environ.get(SILENCE_VARIABLE, SILENCE_SEC))
    slowest_sec = trial.tokens_per_step / MIN_TOKENS_PER_SEC[trial.profile]
    return RankLimits(silence_sec=silence, step_sec=max(silence + STEP_MARGIN_SEC, slowest_sec))
