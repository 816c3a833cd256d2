"""The fine-tuning of a trial: starts its ranks, follows them, and writes training.json.

This process uses no GPU. It reads the data before any rank is started, finds the checkpoint to go on from, and passes a
stop on to the ranks: they end after the step they are in, with a checkpoint. Whatever the end, training.json says what
was trained until then.

On several machines the first one does all that; the others run their share of the ranks (`follow`).
"""

import contextlib
import dataclasses
import sys
import time
from functools import partial
from pathlib import Path

from bench.data.inputs import InputError, Inputs
from bench.data.tokenizer import load_tokenizer
from bench.harness.ends import Stopped, Stops, WorkerGone
from bench.harness.record import Record, Request
from bench.kinds.distributed.distributed import choose_backend, make_limits, rendezvous, visible_gpus
from bench.kinds.distributed.machines import Hub, LeaderGone, Link, Machines
from bench.kinds.distributed.torchrun import (
    Limits,
    RankFailed,
    RankGone,
    RankKilled,
    RankOutOfMemory,
    RankStopped,
    Torchrun,
)
from bench.kinds.finetune import material
from bench.kinds.finetune.checkpoints import checkpoint, resume
from bench.kinds.finetune.job import JOB_FILE, STOP_FILE, Job
from bench.kinds.finetune.story import Story
from bench.records import Trial
from bench.records.result import End
from bench.records.training_data import DataReport
from bench.train import check

MODULE = "bench.kinds.finetune.rank"
POLL_SEC = 0.1
GRACE_SEC = 22.0  # of the 30 s that a node gives between SIGTERM and SIGKILL, for a step and its checkpoint
EXAMPLES_FOLDER = "examples"
# As in a distributed trial; a core that many share, with a model of 135 million weights (measured: 4 a second).
SLOWEST_TOKENS_PER_SEC = {"gpu": 364.0, "tiny": 1.0}


def check_inputs(trial: Trial) -> Inputs:
    """See `bench.kinds.finetune.material`."""
    return material.check_inputs(trial)


def measure(record: Record, inputs: Inputs, stops: Stops) -> None:
    """Train, from the newest checkpoint to the end or until stopped.

    Raises Stopped with a checkpoint behind it; WorkerGone where a rank was killed, hangs, or its machine is gone;
    RankFailed and RankOutOfMemory with the rank's number; InputError; Refused where all checkpoints are broken.
    """
    trial, folder = record.trial, _folder(record.request)
    machines = Machines.from_environment()
    limits, endpoint = make_limits_of(trial), rendezvous()
    backend = choose_backend(trial, visible_gpus(), machines)
    with record.timed("data"):
        data, report = _read(trial, folder, record)
    checkpoint.clear_parts(folder)
    found = resume.find(folder, resume.Identity.of(trial, inputs[0].sha256, data.sha256), record.log)
    job = Job(
        attempt=record.request.attempt,
        checkpoints=str(folder.resolve()),
        resume=None if found is None else str(found.path.resolve()),
        out=str(record.request.out.resolve()),
        examples=str((folder / EXAMPLES_FOLDER).resolve()),
        model_sha256=inputs[0].sha256,
        data_sha256=data.sha256,
    )
    story = Story(record, folder, found, report, planned=data.steps(), row_tokens=data.row_tokens)
    record.on_end = story.write
    with contextlib.ExitStack() as opened:
        ranks = opened.enter_context(
            Torchrun(trial, backend, endpoint, limits, machines, module=MODULE, files={JOB_FILE: job.to_text()})
        )
        hub = None if machines is None else opened.enter_context(Hub(machines, trial.world_size, ranks.folder))
        try:
            _until_ended(story, ranks, hub, stops, limits)
        except Stopped:
            _stop(ranks, story)
            raise
    if story.stop == "max_hours":
        raise Stopped(End.PREEMPTED, f"stopped by train.max_hours after step {story.step}")
    if story.stop == "stopped":
        raise Stopped(End.PREEMPTED, f"one of its workers was told to stop; checkpoint of step {story.step}")


def follow(request: Request, trial: Trial, machines: Machines, stops: Stops) -> int:
    """Run this machine's share of the ranks; the process's exit code. Only the first machine writes anything."""
    limits = make_limits_of(trial)
    mine = machines.ranks_here(trial.world_size)
    try:
        with Link(machines, limits.silence_sec) as link:
            try:
                job = _job_here(request, trial)
                backend = choose_backend(trial, visible_gpus(), machines)
            except InputError as error:
                link.complain(mine[0], str(error))
                raise
            files = {JOB_FILE: job.to_text()}
            with Torchrun(trial, backend, rendezvous(), limits, machines, module=MODULE, files=files) as ranks:

                def poll() -> int | None:
                    link.check()
                    link.mirror(ranks.folder, mine, {rank: ranks.log(rank) for rank in mine})
                    return ranks.poll()

                try:
                    while (code := poll()) is None:
                        stops.check()
                        time.sleep(POLL_SEC)
                except Stopped:  # all ranks end after this step, with a checkpoint
                    ask_to_stop(ranks.folder)
                    until = time.monotonic() + GRACE_SEC
                    while poll() is None and time.monotonic() < until:
                        time.sleep(POLL_SEC)
                    # Said before these ranks are killed: else the first machine takes what then breaks for a failure.
                    link.end({} if poll() is not None else {"stopped": list(mine)})
                    raise
                poll()
                link.end({"ranks": [], **ranks.failures()} if code else {})
            return 0 if code == 0 else 1
    except LeaderGone as gone:
        print(f"{gone}; ranks {mine[0]} to {mine[-1]} were ended", file=sys.stderr)
        return 1


def make_limits_of(trial: Trial) -> Limits:
    """As those of a distributed trial, for one row: ranks move at each."""
    limits = make_limits(trial)
    row_sec = trial.max_seq_len * trial.micro_batch_size / SLOWEST_TOKENS_PER_SEC[trial.profile]
    return dataclasses.replace(limits, step_sec=max(limits.step_sec, row_sec))


def ask_to_stop(folder: Path) -> None:
    (folder / STOP_FILE).touch()


def _folder(request: Request) -> Path:
    """The folder of the checkpoints. Raises InputError."""
    if request.checkpoints is None:
        raise InputError("--checkpoints: missing; a fine-tuning needs a folder that outlives its process")
    try:
        request.checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{request.checkpoints}: cannot be made: {error.strerror}; name another folder") from None
    return request.checkpoints


def _read(trial: Trial, folder: Path, record: Record) -> tuple[material.Material, DataReport]:
    began = time.monotonic()
    data, was_cached = material.load(trial, partial(load_tokenizer, Path(trial.model)), folder / EXAMPLES_FOLDER)
    report = check.described(
        material.training_of(trial).data,
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


def _job_here(request: Request, trial: Trial) -> Job:
    """The job of the ranks on a machine that is not the first. Raises InputError."""
    model, _, _ = check_inputs(trial)
    folder = _folder(request)
    data, _ = material.load(trial, partial(load_tokenizer, Path(trial.model)), folder / EXAMPLES_FOLDER)
    return Job(
        attempt=request.attempt,
        checkpoints=str(folder.resolve()),
        resume=None,
        out=str(request.out.resolve()),
        examples=str((folder / EXAMPLES_FOLDER).resolve()),
        model_sha256=model.sha256,
        data_sha256=data.sha256,
    )


def _until_ended(story: Story, ranks: Torchrun, hub: Hub | None, stops: Stops, limits: Limits) -> None:
    """Take the ranks' lines until they have ended. Raises what ended them."""
    try:
        while (code := ranks.poll()) is None and not (hub is not None and hub.has_failure):
            stops.check()
            story.take(ranks)
            ranks.look()
            time.sleep(POLL_SEC)
        story.take(ranks)
        stops.check()
        if hub is not None and code == 0:
            hub.settle(limits.silence_sec)
        if code != 0 and not story.stop:
            stops.close()  # the end is known: ignore a SIGTERM that follows from it
            if hub is not None:
                hub.settle()
                ranks.look()
            raise ranks.failure()
    except (RankFailed, RankGone, RankOutOfMemory) as error:
        story.take(ranks)
        _tell(story.record, ranks, error)
        if isinstance(error, RankStopped):
            raise Stopped(End.PREEMPTED, str(error)) from None
        if isinstance(error, RankKilled):
            raise WorkerGone(str(error)) from None
        raise


def _tell(record: Record, ranks: Torchrun, error: Exception) -> None:
    record.log(str(error))
    if isinstance(error, RankOutOfMemory):
        record.peak_vram_bytes, record.peak_rss_bytes = error.peak_vram_bytes, error.peak_rss_bytes
    for rank in range(record.trial.world_size):
        for words in ranks.log(rank):
            record.log(f"rank {rank}: {words}")


def _stop(ranks: Torchrun, story: Story) -> None:
    """Let the ranks end after the step they are in, with a checkpoint, as far as there is time."""
    ask_to_stop(ranks.folder)
    until = time.monotonic() + GRACE_SEC
    while ranks.poll() is None and time.monotonic() < until:
        time.sleep(POLL_SEC)
    story.take(ranks)
    story.record.log(
        f"stopped after step {story.step}, with a checkpoint" if story.stop else "stopped before a step was done"
    )
