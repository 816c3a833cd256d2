"""The fine-tuning of a trial: starts its ranks, follows them, and writes training.json.

This process uses no GPU. It reads the data before any rank is started, finds the checkpoint to go on from, and passes a
stop on to the ranks: they end after the step they are in, with a checkpoint. Whatever the end, training.json says what
was trained until then.

On several machines the first one does all that; the others run their share of the ranks (`follow`).
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from bench.data.inputs import InputError, Inputs
from bench.data.tokenizer import load_tokenizer
from bench.harness.record import Record, Request
from bench.harness.termination import Stopped, Stops, WorkerGone
from bench.records import Trial
from bench.records.result import TrialStatus
from bench.records.training_data import DataReport
from bench.train import check
from bench.workloads.distributed.distributed import (
    POLL_SEC,
    choose_backend,
    make_limits,
    rendezvous,
    run_share,
    settle,
    tell,
    visible_gpus,
    watch,
)
from bench.workloads.distributed.multi_node import NodeHub, NodeList
from bench.workloads.distributed.torchrun import (
    RankFailed,
    RankGone,
    RankKilled,
    RankLimits,
    RankOutOfMemory,
    RankStopped,
    Torchrun,
)
from bench.workloads.finetune import training_set
from bench.workloads.finetune.checkpoints import checkpoint, resume
from bench.workloads.finetune.rank_spec import JOB_FILE, STOP_FILE, RankSpec
from bench.workloads.finetune.training_log import TrainingLog
from bench.workloads.finetune.training_set import check_inputs  # every module of a kind with inputs of its own has one

MODULE = "bench.workloads.finetune.rank"
GRACE_SEC = 22.0  # of the 30 s that a node gives between SIGTERM and SIGKILL, for a step and its checkpoint
EXAMPLES_FOLDER = "examples"
# As in a distributed trial; a core that many share, with a model of 135 million weights (measured: 4 a second).
SLOWEST_TOKENS_PER_SEC = {"gpu": 364.0, "tiny": 1.0}


def measure(record: Record, inputs: Inputs, stops: Stops) -> None:
    """Train, from the newest checkpoint to the end or until stopped.

    Raises Stopped with a checkpoint behind it; WorkerGone where a rank was killed, hangs, or its machine is gone;
    RankFailed and RankOutOfMemory with the rank's number; InputError; Refused where all checkpoints are broken.
    """
    trial, folder = record.trial, _folder(record.request)
    machines = NodeList.from_environment()
    limits, endpoint = make_limits_of(trial), rendezvous()
    backend = choose_backend(trial, visible_gpus(), machines)
    with record.timed("data"):
        data, report = _read(trial, folder, record)
    checkpoint.clear_parts(folder)
    found = resume.find(folder, resume.Identity.of(trial, inputs[0].sha256, data.sha256), record.log)
    newest = None if found is None else str(found.path.resolve())
    job = _job(record.request, folder, inputs[0].sha256, data.sha256, newest=newest)
    story = TrainingLog(record, folder, found, report, planned=data.steps(), row_tokens=data.row_tokens)
    record.on_end = story.write
    with contextlib.ExitStack() as opened:
        with stops.later():  # else ranks that are being started are nobody's
            ranks = opened.enter_context(
                Torchrun(trial, backend, endpoint, limits, machines, module=MODULE, files={JOB_FILE: job.to_text()})
            )
        hub = None if machines is None else opened.enter_context(NodeHub(machines, trial.world_size, ranks.folder))
        try:
            _until_ended(story, ranks, hub, stops, limits)
        except Stopped:
            let_end(ranks.folder, ranks.poll)
            ranks.hand_on(story.take)
            done = f"after step {story.step}, with a checkpoint" if story.stop else "before a step was done"
            record.log(f"stopped {done}")
            raise
    if story.stop == "max_hours":
        limit = training_set.training_of(trial).limited_by
        raise Stopped(TrialStatus.PREEMPTED, f"stopped by {limit} after step {story.step}")
    if story.stop == "stopped":
        raise Stopped(TrialStatus.PREEMPTED, f"one of its workers was told to stop; checkpoint of step {story.step}")


def follow(request: Request, trial: Trial, machines: NodeList, stops: Stops) -> int:
    """Run this machine's share of the ranks, over inputs and examples that it checks for itself."""

    def prepare() -> Mapping[str, str]:
        model, _, _ = check_inputs(trial)
        folder = _folder(request)
        data, _ = training_set.load(trial, partial(load_tokenizer, Path(trial.model)), folder / EXAMPLES_FOLDER)
        return {JOB_FILE: _job(request, folder, model.sha256, data.sha256).to_text()}

    return run_share(trial, machines, stops, make_limits_of(trial), prepare, let_end=let_end, module=MODULE)


def make_limits_of(trial: Trial) -> RankLimits:
    """As those of a distributed trial, for one row: ranks move at each."""
    limits = make_limits(trial)
    row_sec = trial.max_seq_len * trial.micro_batch_size / SLOWEST_TOKENS_PER_SEC[trial.profile]
    return dataclasses.replace(limits, step_sec=max(limits.step_sec, row_sec))


def let_end(folder: Path, poll: Callable[[], int | None]) -> None:
    """Let the ranks end after the step they are in, with a checkpoint, as far as there is time."""
    (folder / STOP_FILE).touch()
    until = time.monotonic() + GRACE_SEC
    while poll() is None and time.monotonic() < until:
        time.sleep(POLL_SEC)


def _folder(request: Request) -> Path:
    """The folder of the checkpoints. Raises InputError."""
    if request.checkpoints is None:
        raise InputError("--checkpoints: missing; a fine-tuning needs a folder that outlives its process")
    try:
        request.checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{request.checkpoints}: cannot be made: {error.strerror}; name another folder") from None
    return request.checkpoints


def _read(trial: Trial, folder: Path, record: Record) -> tuple[training_set.TrainingSet, DataReport]:
    began = time.monotonic()
    data, was_cached = training_set.load(trial, partial(load_tokenizer, Path(trial.model)), folder / EXAMPLES_FOLDER)
    report = check.described(
        training_set.training_of(trial).data,
        data.data,
        row_tokens=data.row_tokens,
        was_cached=was_cached,
        seconds=time.monotonic() - began,
    )
    record.log(
        f"{report.examples:,} examples to train on, {report.validation_examples:,} held out, "
        f"{report.targets:,} of {report.tokens:,} tokens are targets; {report.left_out:,} left out"
    )
    return data, report


def _job(request: Request, folder: Path, model_sha256: str, data_sha256: str, *, newest: str | None = None) -> RankSpec:
    return RankSpec(
        checkpoints=str(folder.resolve()),
        resume=newest,
        out=str(request.out.resolve()),
        examples=str((folder / EXAMPLES_FOLDER).resolve()),
        model_sha256=model_sha256,
        data_sha256=data_sha256,
    )


def _until_ended(story: TrainingLog, ranks: Torchrun, hub: NodeHub | None, stops: Stops, limits: RankLimits) -> None:
    """Take the ranks' lines until they have ended. Raises what ended them."""
    try:
        code = watch(ranks, hub, stops, story.take)
        stops.check()
        settle(code, ranks, hub, stops, limits, has_failed=code != 0 and not story.stop)
    except (RankFailed, RankGone, RankOutOfMemory) as error:
        ranks.hand_on(story.take)
        tell(story.record, ranks, error)
        if isinstance(error, RankStopped):
            raise Stopped(TrialStatus.PREEMPTED, str(error)) from None
        if isinstance(error, RankKilled):
            raise WorkerGone(str(error)) from None
        raise
