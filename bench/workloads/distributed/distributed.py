"""The distributed trial: the same QLoRA step on several ranks, and the cost of their communication.

This process uses no GPU: it starts torchrun, follows its ranks, and turns their times into measurements. A step's time
is the slowest rank's; all ranks begin a step together, so that work between steps does not count as communication.
Samples and tokens of the steps are per device, as in all trials; the global rates are over all ranks. Efficiency here
compares with the same ranks in the same run without communication; the report compares with a trial of one rank.

On several machines, the first one does this; the others only run their share of the ranks (`follow`).
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench.data.inputs import InputError, Inputs
from bench.data.trial_inputs import check_trial
from bench.harness.record import Record, Request
from bench.harness.termination import Stopped, StopSignals
from bench.records import Trial
from bench.records.bootstrap import summarize
from bench.records.result import Steps
from bench.workloads.distributed import efficiency
from bench.workloads.distributed.multi_node import LeaderGone, LeaderLink, NodeHub, NodeList
from bench.workloads.distributed.torchrun import RankFailed, RankGone, RankLimits, RankOutOfMemory, Torchrun

PORT_VARIABLE, SILENCE_VARIABLE = "QLORA_FLEET_RDZV_PORT", "QLORA_FLEET_SILENCE_SEC"
SILENCE_SEC = 45.0  # a dead or hung rank then ends the trial within 60 s
STEP_MARGIN_SEC = 5.0  # report a silent rank before a hung step, because that report names the rank
MIN_TOKENS_PER_SEC = 364.0  # half the rate of an A10: a slower step counts as hung
POLL_SEC = 0.1
GPU_COUNT_TIMEOUT_SEC = 120.0
REDUCE_SIZE_COUNT = {"gpu": 5, "tiny": 3}


def measure(record: Record, inputs: Inputs, stops: StopSignals) -> None:
    """Run the ranks and add their steps and measurements to the record.

    Raises RankFailed, RankGone and RankOutOfMemory with the rank's number, and InputError, also for a rank's input.
    """
    trial, (_, data_facts, _) = record.trial, inputs
    if data_facts.samples < trial.world_size:
        raise InputError(
            f"{trial.data}: expected a sample for each of {trial.world_size} ranks, found {data_facts.samples}"
        )
    limits, endpoint, nodes = make_limits(trial), rendezvous_endpoint(), NodeList.from_environment()
    backend = choose_backend(trial, visible_gpus(), nodes)
    record.steps_planned = trial.warmup_steps + trial.measured_steps + _planned_measurements(trial)
    report = RankReport(record)
    with contextlib.ExitStack() as stack:
        ranks = stack.enter_context(Torchrun(trial, backend, endpoint, limits, nodes))
        hub = None if nodes is None else stack.enter_context(NodeHub(nodes, trial.world_size, ranks.folder))
        try:
            code = follow_ranks(ranks, hub, stops, report.on_line)
            finish_ranks(code, ranks, hub, stops, limits, has_failed=code != 0)
        except (RankFailed, RankGone, RankOutOfMemory) as error:
            log_failure(record, ranks, error)
            raise
    add_measurements(record, report, backend)


def follow_ranks(
    ranks: Torchrun, hub: NodeHub | None, stops: StopSignals, on_line: Callable[[dict[str, Any]], None]
) -> int | None:
    """Dispatch rank 0's lines until the ranks end or another machine reports a failure; return torchrun's exit code."""
    while (code := ranks.poll()) is None and not (hub is not None and hub.has_failure):
        with stops.deferred():  # an interrupted line would be half processed and not dispatched again
            ranks.dispatch_lines(on_line)
        ranks.check_progress()
        time.sleep(POLL_SEC)
    with stops.deferred():
        ranks.dispatch_lines(on_line)
    return code


def finish_ranks(
    code: int | None, ranks: Torchrun, hub: NodeHub | None, stops: StopSignals, limits: RankLimits, *, has_failed: bool
) -> None:
    """Wait for the other machines' last messages after `follow_ranks`. If `has_failed`, raise what ended the ranks."""
    if hub is not None and code == 0:
        hub.wait_for_nodes(limits.silence_sec)
    if has_failed:
        stops.close()  # the outcome is known: ignore a SIGTERM that follows from it
        if hub is not None:
            hub.wait_for_nodes()
            ranks.check_progress()
        raise ranks.failure()


def log_failure(record: Record, ranks: Torchrun, error: Exception) -> None:
    """Log the failure and every rank's last lines in the record."""
    record.log(str(error))
    if isinstance(error, RankOutOfMemory):
        record.peak_vram_bytes, record.peak_rss_bytes = error.peak_vram_bytes, error.peak_rss_bytes
    for rank in range(record.trial.world_size):
        for line in ranks.last_lines(rank):
            record.log(f"rank {rank}: {line}")


def follow(_request: Request, trial: Trial, nodes: NodeList, stops: StopSignals) -> int:
    """Run this machine's share of the ranks, with inputs that it checks on its own."""

    def prepare() -> Mapping[str, str]:
        check_trial(trial)
        return {}

    return run_local_ranks(trial, nodes, stops, make_limits(trial), prepare)


def run_local_ranks(
    trial: Trial,
    nodes: NodeList,
    stops: StopSignals,
    limits: RankLimits,
    prepare: Callable[[], Mapping[str, str]],
    *,
    stop_after_step: Callable[[Path, Callable[[], int | None]], None] | None = None,
    **options: Any,
) -> int:
    """Run this machine's share of the ranks; return the exit code. Only the first machine measures and writes.

    `prepare` checks the inputs and returns the ranks' files. `stop_after_step`, if not None, lets the ranks end their
    current step after a stop signal. `options` are Torchrun's.
    """
    mine = nodes.local_ranks(trial.world_size)
    try:
        with LeaderLink(nodes, limits.silence_sec) as link:
            try:
                files = prepare()
                backend = choose_backend(trial, visible_gpus(), nodes)
            except InputError as error:
                link.report_bad_input(mine[0], error)
                raise
            except Stopped:  # reported as below: otherwise this machine would count as lost
                link.send_end({"stopped": list(mine)})
                raise
            with Torchrun(trial, backend, rendezvous_endpoint(), limits, nodes, files=files, **options) as ranks:

                def poll() -> int | None:
                    code = ranks.poll()
                    if code is None:  # ranks that have succeeded no longer need the first machine
                        link.check()
                    link.send_changes(ranks.folder, mine, {rank: ranks.last_lines(rank) for rank in mine})
                    return code

                try:
                    while (code := poll()) is None:
                        stops.check()
                        time.sleep(POLL_SEC)
                except Stopped:
                    if stop_after_step is not None:
                        stop_after_step(ranks.folder, poll)
                    # Sent before these ranks are killed: otherwise the first machine would report a failure. With
                    # another code than 0, torchrun was stopped as well, and its ranks may not have ended their step.
                    link.send_end({} if poll() == 0 else {"stopped": list(mine)})
                    raise
                poll()
                link.send_end({"ranks": [], **ranks.local_failures()} if code else {})
            return 0 if code == 0 else 1
    except LeaderGone as gone:
        print(f"{gone}; ranks {mine[0]} to {mine[-1]} were ended", file=sys.stderr)
        return 1


def visible_gpus() -> int:
    """Count the GPUs that torch sees, in another process: this one must not initialize CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "" or not (Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi")):
        return 0
    argv = (sys.executable, "-c", "import torch; print(torch.cuda.device_count())")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=GPU_COUNT_TIMEOUT_SEC, check=True)
        return int(done.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise InputError(f"torch cannot count the GPUs ({error}); run: {sys.executable} -m bench selfcheck") from error


def choose_backend(trial: Trial, gpus: int, nodes: NodeList | None = None) -> str:
    """Return nccl with a GPU for every rank, gloo without any GPU. Raises InputError for too few GPUs."""
    if gpus == 0:
        return "gloo"
    local = trial.world_size if nodes is None else len(nodes.local_ranks(trial.world_size))
    if gpus < local:
        raise InputError(
            f"world_size: {local} ranks need one GPU each, this machine has {gpus}; choose a trial with at most "
            f"{gpus} ranks, or a machine with more GPUs"
        )
    return "nccl"


def rendezvous_endpoint() -> str:
    """Return the ranks' rendezvous address: 127.0.0.1, with a port set by PORT_VARIABLE or chosen by torchrun.

    Raises InputError.
    """
    port = os.environ.get(PORT_VARIABLE)
    if port is None:
        return "127.0.0.1:0"
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InputError(f"{PORT_VARIABLE}: expected a port from 1 to 65535, found {port!r}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(port)))
        except OSError as error:
            raise InputError(
                f"{PORT_VARIABLE}: port {port} cannot be used for the rendezvous: {error.strerror}; choose another "
                "port, or unset the variable to use a free one"
            ) from error
    return f"127.0.0.1:{port}"


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


class RankReport:
    """The data reported by rank 0: steps go into the record at once, the rest is used by `add_measurements`."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.tables: dict[str, dict[int, list[list[list[float]]]]] = defaultdict(lambda: defaultdict(list))
        self.all_reduce_sec: dict[int, list[float]] = {}
        self.buckets: list[int] = []
        self.peaks: dict[str, list[float]] = {}

    def on_line(self, line: dict[str, Any]) -> None:
        """Process one of rank 0's lines."""
        record = self.record
        if "step" in line:
            self._add_step(**line["step"])
        if "all_reduce" in line:
            self.all_reduce_sec[line["all_reduce"]["bytes"]] = line["all_reduce"]["sec"]
        record.apply_report(line)
        self.buckets = line.get("buckets", self.buckets)
        if "peaks" in line:
            self.peaks = line["peaks"]
            record.peak_rss_bytes = int(max(self.peaks["rss_bytes"]))
            if record.fingerprint.get("device") == "cuda":
                record.peak_vram_bytes = int(max(self.peaks["vram_bytes"]))

    def _add_step(self, kind: str, block: int, table: list[list[float]]) -> None:
        """Add a step; `table` has per rank: seconds, loss, samples, tokens, useful tokens, communication seconds."""
        self.tables[kind][block].append(table)
        if kind not in ("warmup", "on"):
            return
        steps: Steps = self.record.warmup if kind == "warmup" else self.record.steps
        seconds, losses, samples, tokens, useful, _ = zip(*table, strict=True)
        self.record.add_step(
            steps,
            seconds=max(seconds),
            loss=mean(losses),
            samples=mean(samples),
            tokens=round(mean(tokens)),
            useful=round(mean(useful)),
        )

    def slowest(self, kind: str) -> list[list[float]]:
        """Return the slowest rank's step times of a kind, by block."""
        return [[max(row[0] for row in table) for table in block] for block in self.tables[kind].values()]


def add_measurements(record: Record, report: RankReport, backend: str) -> None:
    """Add the measurements of a successful run."""
    world_size = record.trial.world_size
    on = [table for block in report.tables["on"].values() for table in block]
    times = summarize(record.steps.step_time_sec)
    ranks: dict[str, Any] = {"world_size": world_size, "backend": backend}
    for name, column in (("global_samples_per_sec", 2), ("global_tokens_per_sec", 3)):
        amount = sum(row[column] for table in on for row in table) / len(on)
        record.add(name, efficiency.rate(amount, times), **ranks)
    for rank in range(world_size):
        record.add("step_time_sec", summarize([table[rank][0] for table in on]), rank=rank, world_size=world_size)
    record.fingerprint["rank_peak_rss_bytes"] = [int(value) for value in report.peaks["rss_bytes"]]
    record.fingerprint["gradient_buckets_bytes"] = report.buckets
    if world_size == 1:
        for name in COMMUNICATION_METRICS:
            record.add(name, None, note="one rank does not communicate", **ranks)
        return
    _add_communication(record, report, ranks)


COMMUNICATION_METRICS = (
    "efficiency_percent",
    "communication_share_no_sync_percent",
    "communication_time_sec",
    "communication_share_buckets_percent",
    "all_reduce_gb_per_sec",
    "all_reduce_bus_gb_per_sec",
    "communication_bound_sec",
)


def _add_communication(record: Record, report: RankReport, ranks: dict[str, Any]) -> None:
    world_size, gradient = record.trial.world_size, int(record.fingerprint["gradient_bytes"])
    for size, seconds in report.all_reduce_sec.items():
        on_bus = size / 1e9 * efficiency.bus_factor(world_size)
        context: dict[str, Any] = {"size_bytes": size, "is_gradient_size": size == gradient, "dtype": "fp32", **ranks}
        record.add("all_reduce_gb_per_sec", efficiency.rate(size / 1e9, summarize(seconds)), **context)
        record.add("all_reduce_bus_gb_per_sec", efficiency.rate(on_bus, summarize(seconds)), **context)
    off, on = report.slowest("off"), report.slowest("on")
    step_sec_without = median(t for block in off for t in block)
    bound = summarize(report.all_reduce_sec[gradient])
    record.add(
        "communication_bound_sec",
        bound,
        gradient_bytes=gradient,
        efficiency_without_overlap_percent=round(100.0 * step_sec_without / (step_sec_without + bound.median), 3),
        efficiency_with_full_overlap_percent=round(100.0 * step_sec_without / max(step_sec_without, bound.median), 3),
        **ranks,
    )
    efficiency_interval = efficiency.efficiency_percent(off, on)
    record.add(
        "efficiency_percent",
        efficiency_interval,
        against="the same ranks without communication",
        step_time_without_sec=round(step_sec_without, 6),
        blocks=len(off),
        **ranks,
    )
    share = efficiency.remainder_percent(efficiency_interval)
    record.add("communication_share_no_sync_percent", share, blocks=len(off), **ranks)
    # The last rank does not wait for others: its buckets take only as long as the exchange itself.
    hooked = [table for block in report.tables["hooked"].values() for table in block]
    shortest = summarize([min(row[5] for row in table) for table in hooked])
    longest = summarize([max(row[5] for row in table) for table in hooked])
    timed = {"buckets": len(report.buckets), "overlapped": "with the backward pass", **ranks}
    record.add(
        "communication_time_sec",
        shortest,
        rank_that_waits_most_sec=round(longest.median, 6),
        **timed,
    )
    step_sec = summarize([max(row[0] for row in table) for table in hooked])
    record.add("communication_share_buckets_percent", 100.0 * shortest.median / step_sec.median, **timed)


def _planned_measurements(trial: Trial) -> int:
    if trial.world_size == 1:
        return 3 + len(COMMUNICATION_METRICS)
    return 2 + trial.world_size + 2 * REDUCE_SIZE_COUNT[trial.profile] + len(COMMUNICATION_METRICS) - 2
