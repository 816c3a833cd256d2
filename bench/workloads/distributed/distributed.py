"""The distributed trial: the same QLoRA step on several ranks, and the cost of their communication.

This process uses no GPU: it starts torchrun, follows its ranks, and turns their times into measurements. A step's time
is the slowest rank's; all ranks begin a step together, so that work between steps does not count as communication.
Samples and tokens of the steps are per device, as everywhere; the global rates are over all ranks. Efficiency here is
against the same ranks in the same run without communication; the report has the one against a trial of one rank.

On several machines the first one does all that; the others run their share of the ranks (`follow`).
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
from bench.harness.termination import Stopped, Stops
from bench.records import Trial
from bench.records.bootstrap import summarize
from bench.records.result import Steps
from bench.workloads.distributed import efficiency
from bench.workloads.distributed.multi_node import LeaderGone, LeaderLink, NodeHub, NodeList
from bench.workloads.distributed.torchrun import RankFailed, RankGone, RankLimits, RankOutOfMemory, Torchrun

PORT_VARIABLE, SILENCE_VARIABLE = "QLORA_FLEET_RDZV_PORT", "QLORA_FLEET_SILENCE_SEC"
SILENCE_SEC = 45.0  # a dead or hung rank then ends the trial within 60 s
LATER_SEC = 5.0  # a silent rank is noticed before a step that never ends, as it names the rank
SLOWEST_TOKENS_PER_SEC = 364.0  # half the rate of an A10: a slower step hangs
POLL_SEC = 0.1
COUNT_SEC = 120.0
REDUCE_SIZES = {"gpu": 5, "tiny": 3}


def measure(record: Record, inputs: Inputs, stops: Stops) -> None:
    """Run the ranks and put their steps and measurements into the record.

    Raises RankFailed, RankGone and RankOutOfMemory with the rank's number, and InputError, also for a rank's input.
    """
    trial, (_, data_facts, _) = record.trial, inputs
    if data_facts.samples < trial.world_size:
        raise InputError(
            f"{trial.data}: expected a sample for each of {trial.world_size} ranks, found {data_facts.samples}"
        )
    limits, endpoint, machines = make_limits(trial), rendezvous(), NodeList.from_environment()
    backend = choose_backend(trial, visible_gpus(), machines)
    record.steps_planned = trial.warmup_steps + trial.measured_steps + _planned(trial)
    reported = RankReport(record)
    with contextlib.ExitStack() as open_things:
        ranks = open_things.enter_context(Torchrun(trial, backend, endpoint, limits, machines))
        hub = None if machines is None else open_things.enter_context(NodeHub(machines, trial.world_size, ranks.folder))
        try:
            code = watch(ranks, hub, stops, reported.take)
            settle(code, ranks, hub, stops, limits, has_failed=code != 0)
        except (RankFailed, RankGone, RankOutOfMemory) as error:
            tell(record, ranks, error)
            raise
    report(record, reported, backend)


def watch(ranks: Torchrun, hub: NodeHub | None, stops: Stops, take: Callable[[dict[str, Any]], None]) -> int | None:
    """Hand rank 0's lines on until the ranks have ended or another machine reports a failure; torchrun's exit code."""
    while (code := ranks.poll()) is None and not (hub is not None and hub.has_failure):
        with stops.later():  # else the line that a stop interrupts is half taken, and is not handed on again
            ranks.hand_on(take)
        ranks.look()
        time.sleep(POLL_SEC)
    with stops.later():
        ranks.hand_on(take)
    return code


def settle(
    code: int | None, ranks: Torchrun, hub: NodeHub | None, stops: Stops, limits: RankLimits, *, has_failed: bool
) -> None:
    """After `watch`: wait for what the other machines have to say. Raises what ended the ranks, where that failed."""
    if hub is not None and code == 0:
        hub.settle(limits.silence_sec)
    if has_failed:
        stops.close()  # the end is known: ignore a SIGTERM that follows from it
        if hub is not None:
            hub.settle()
            ranks.look()
        raise ranks.failure()


def tell(record: Record, ranks: Torchrun, error: Exception) -> None:
    """Put the failure and every rank's last lines into the record."""
    record.log(str(error))
    if isinstance(error, RankOutOfMemory):
        record.peak_vram_bytes, record.peak_rss_bytes = error.peak_vram_bytes, error.peak_rss_bytes
    for rank in range(record.trial.world_size):
        for words in ranks.log(rank):
            record.log(f"rank {rank}: {words}")


def follow(_request: Request, trial: Trial, machines: NodeList, stops: Stops) -> int:
    """Run this machine's share of the ranks, over inputs that it checks for itself."""

    def prepare() -> Mapping[str, str]:
        check_trial(trial)
        return {}

    return run_share(trial, machines, stops, make_limits(trial), prepare)


def run_share(
    trial: Trial,
    machines: NodeList,
    stops: Stops,
    limits: RankLimits,
    prepare: Callable[[], Mapping[str, str]],
    *,
    let_end: Callable[[Path, Callable[[], int | None]], None] | None = None,
    **options: Any,
) -> int:
    """Run this machine's share of the ranks; the process's exit code. Only the first machine measures and writes.

    `prepare` checks the inputs and returns the ranks' files. After a stop `let_end`, where it is given, lets the ranks
    end the step they are in. `options` are Torchrun's.
    """
    mine = machines.ranks_here(trial.world_size)
    try:
        with LeaderLink(machines, limits.silence_sec) as link:
            try:
                files = prepare()
                backend = choose_backend(trial, visible_gpus(), machines)
            except InputError as error:
                link.complain(mine[0], str(error))
                raise
            except Stopped:  # told, as below: else this machine is taken for one that is gone
                link.end({"stopped": list(mine)})
                raise
            with Torchrun(trial, backend, rendezvous(), limits, machines, files=files, **options) as ranks:

                def poll() -> int | None:
                    code = ranks.poll()
                    if code is None:  # ranks that have ended well do not need the first machine any more
                        link.check()
                    link.mirror(ranks.folder, mine, {rank: ranks.log(rank) for rank in mine})
                    return code

                try:
                    while (code := poll()) is None:
                        stops.check()
                        time.sleep(POLL_SEC)
                except Stopped:
                    if let_end is not None:
                        let_end(ranks.folder, poll)
                        # Said before these ranks are killed: else the first machine takes what breaks for a failure.
                        link.end({} if poll() is not None else {"stopped": list(mine)})
                    raise
                poll()
                link.end({"ranks": [], **ranks.failures()} if code else {})
            return 0 if code == 0 else 1
    except LeaderGone as gone:
        print(f"{gone}; ranks {mine[0]} to {mine[-1]} were ended", file=sys.stderr)
        return 1


def visible_gpus() -> int:
    """How many GPUs torch sees, counted in another process: this one must not initialize CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "" or not (Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi")):
        return 0
    ask = (sys.executable, "-c", "import torch; print(torch.cuda.device_count())")
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=COUNT_SEC, check=True)
        return int(done.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise InputError(f"torch cannot count the GPUs ({error}); try: {sys.executable} -m bench selfcheck") from None


def choose_backend(trial: Trial, gpus: int, machines: NodeList | None = None) -> str:
    """nccl with a GPU for every rank, gloo without any GPU. Raises InputError for too few GPUs."""
    if gpus == 0:
        return "gloo"
    here = trial.world_size if machines is None else len(machines.ranks_here(trial.world_size))
    if gpus < here:
        raise InputError(
            f"world_size: {here} ranks need a GPU each, this machine shows {gpus}; choose a trial of at "
            f"most {gpus} ranks, or a machine with more"
        )
    return "nccl"


def rendezvous() -> str:
    """Where the ranks meet: 127.0.0.1, at a port that torchrun chooses or at the given one. Raises InputError."""
    given = os.environ.get(PORT_VARIABLE)
    if given is None:
        return "127.0.0.1:0"
    if not given.isascii() or not given.isdigit() or not 0 < int(given) < 65_536:
        raise InputError(f"{PORT_VARIABLE}: expected a port from 1 to 65535, found {given!r}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(given)))
        except OSError as error:
            raise InputError(
                f"{PORT_VARIABLE}: port {given} cannot be used for the rendezvous: {error.strerror}; choose another, "
                "or unset it and a free one is found"
            ) from None
    return f"127.0.0.1:{given}"


def make_limits(trial: Trial) -> RankLimits:
    """A rank counts as hung after 45 s, a step after 50 s, or later where a slow GPU needs longer for its tokens."""
    given = os.environ.get(SILENCE_VARIABLE, str(SILENCE_SEC))
    try:
        silence = float(given)
    except ValueError:
        silence = -1.0
    if not 1.0 <= silence <= 3600.0:
        raise InputError(f"{SILENCE_VARIABLE}: expected 1 to 3600 seconds, found {given!r}")
    slowest_sec = trial.tokens_per_step / SLOWEST_TOKENS_PER_SEC
    return RankLimits(silence_sec=silence, step_sec=max(silence + LATER_SEC, slowest_sec))


class RankReport:
    """What rank 0 has reported: steps go into the record at once, the rest is kept for `report`."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.tables: dict[str, dict[int, list[list[list[float]]]]] = defaultdict(lambda: defaultdict(list))
        self.reduced: dict[int, list[float]] = {}
        self.buckets: list[int] = []
        self.peaks: dict[str, list[float]] = {}

    def take(self, line: dict[str, Any]) -> None:
        """One of rank 0's lines."""
        record = self.record
        if "step" in line:
            self._step(**line["step"])
        if "all_reduce" in line:
            self.reduced[line["all_reduce"]["bytes"]] = line["all_reduce"]["sec"]
        record.take(line)
        self.buckets = line.get("buckets", self.buckets)
        if "peaks" in line:
            self.peaks = line["peaks"]
            record.peak_rss_bytes = int(max(self.peaks["rss_bytes"]))
            if record.fingerprint.get("device") == "cuda":
                record.peak_vram_bytes = int(max(self.peaks["vram_bytes"]))

    def _step(self, kind: str, block: int, table: list[list[float]]) -> None:
        """`table` has a row for each rank: seconds, loss, samples, tokens, useful tokens, seconds of communication."""
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
        """Step times of a kind, the slowest rank's, by block."""
        return [[max(row[0] for row in table) for table in block] for block in self.tables[kind].values()]


def report(record: Record, reported: RankReport, backend: str) -> None:
    """Add the measurements of a run that went well."""
    world_size = record.trial.world_size
    on = [table for block in reported.tables["on"].values() for table in block]
    times = summarize(record.steps.step_time_sec)
    ranks: dict[str, Any] = {"world_size": world_size, "backend": backend}
    for name, column in (("global_samples_per_sec", 2), ("global_tokens_per_sec", 3)):
        amount = sum(row[column] for table in on for row in table) / len(on)
        record.add(name, efficiency.rate(amount, times), **ranks)
    for rank in range(world_size):
        record.add("step_time_sec", summarize([table[rank][0] for table in on]), rank=rank, world_size=world_size)
    record.fingerprint["rank_peak_rss_bytes"] = [int(value) for value in reported.peaks["rss_bytes"]]
    record.fingerprint["gradient_buckets_bytes"] = reported.buckets
    if world_size == 1:
        for name in ALONE:
            record.add(name, None, note="one rank does not communicate", **ranks)
        return
    _communication(record, reported, ranks)


ALONE = (
    "efficiency_percent",
    "communication_share_no_sync_percent",
    "communication_time_sec",
    "communication_share_buckets_percent",
    "all_reduce_gb_per_sec",
    "all_reduce_bus_gb_per_sec",
    "communication_bound_sec",
)


def _communication(record: Record, reported: RankReport, ranks: dict[str, Any]) -> None:
    world_size, gradient = record.trial.world_size, int(record.fingerprint["gradient_bytes"])
    for size, seconds in reported.reduced.items():
        on_bus = size / 1e9 * efficiency.bus_factor(world_size)
        context: dict[str, Any] = {"size_bytes": size, "is_gradient_size": size == gradient, "dtype": "fp32", **ranks}
        record.add("all_reduce_gb_per_sec", efficiency.rate(size / 1e9, summarize(seconds)), **context)
        record.add("all_reduce_bus_gb_per_sec", efficiency.rate(on_bus, summarize(seconds)), **context)
    without, with_ = reported.slowest("off"), reported.slowest("on")
    alone = median(t for block in without for t in block)
    bound = summarize(reported.reduced[gradient])
    record.add(
        "communication_bound_sec",
        bound,
        gradient_bytes=gradient,
        efficiency_without_overlap_percent=round(100.0 * alone / (alone + bound.median), 3),
        efficiency_with_full_overlap_percent=round(100.0 * alone / max(alone, bound.median), 3),
        **ranks,
    )
    with_exchange = efficiency.efficiency_percent(without, with_)
    record.add(
        "efficiency_percent",
        with_exchange,
        against="the same ranks without communication",
        step_time_without_sec=round(alone, 6),
        blocks=len(without),
        **ranks,
    )
    share = efficiency.remainder_percent(with_exchange)
    record.add("communication_share_no_sync_percent", share, blocks=len(without), **ranks)
    # The last rank waits for none: its buckets are under way for as long as the exchange of data takes.
    hooked = [table for block in reported.tables["hooked"].values() for table in block]
    least = summarize([min(row[5] for row in table) for table in hooked])
    most = summarize([max(row[5] for row in table) for table in hooked])
    timed = {"buckets": len(reported.buckets), "overlapped": "with the backward pass", **ranks}
    record.add(
        "communication_time_sec",
        least,
        rank_that_waits_most_sec=round(most.median, 6),
        **timed,
    )
    whole = summarize([max(row[0] for row in table) for table in hooked])
    record.add("communication_share_buckets_percent", 100.0 * least.median / whole.median, **timed)


def _planned(trial: Trial) -> int:
    if trial.world_size == 1:
        return 3 + len(ALONE)
    return 2 + trial.world_size + 2 * REDUCE_SIZES[trial.profile] + len(ALONE) - 2
