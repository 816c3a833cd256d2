"""One trial, from its file to its result: check, import, measure, write.

A process runs one trial and exits. Unless it is killed by SIGKILL, it leaves a result.json with the status and
everything measured. Bad input is rejected before the first step and leaves no result. The module of the trial's
workload measures, by `measure(record, inputs, stops)`.
"""

import contextlib
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from bench.data.inputs import InputError, Inputs
from bench.data.trial_inputs import check_trial
from bench.harness import termination
from bench.harness.record import Clock, Log, ProgressFile, Record, Request
from bench.harness.termination import Stopped, StopSignals
from bench.machine import fingerprint, preflight, telemetry
from bench.records import Trial, TrialError
from bench.records.checksummed import ResultError
from bench.records.paths import PROGRESS_FILE, RESULT_FILE
from bench.records.result import TrialResult
from bench.records.run import Progress
from bench.records.status import ExitCode, Outcome, ReasonCode, TrialStatus
from bench.workloads import load
from bench.workloads.ranks.multi_node import NodeList, dismiss_nodes

TRACEBACK_LINES = 12
# As large as any result, so that a full disk is reported before the work.
PROBE_BYTES = 256 * 1024


def run(trial: Trial, request: Request) -> int:
    """Run a trial and return the exit code (see `bench.records.status`). Errors of the trial are not raised.

    Raises InputError and TrialError before the first step, also for a folder that cannot be written.
    """
    stops, clock = StopSignals(), Clock()
    stops.install()
    record: Record | None = None
    nodes: NodeList | None = None
    where = "before the trial began"
    try:
        stops.set_deadline(trial.deadline_sec)
        check_checkpoints_flag(trial, request.checkpoints)
        nodes = NodeList.from_environment() if trial.workload.is_ranked else None
        if nodes is not None and nodes.rank > 0:
            where = f"while machine {nodes.rank} ran its ranks"
            with telemetry.watch_gpus(request, trial, stops):
                return load(trial.workload).follow(request, trial, nodes, stops)  # type: ignore[no-any-return]
        check_not_finished(request.out)
        is_new_folder = not request.out.exists()
        prepare_folder(request.out)
        # Reading the data takes minutes; without progress the operator's display would stay silent.
        reading = Progress(phase="check", step=0, steps=0, elapsed_sec=round(clock.elapsed(), 3))
        ProgressFile(request.out, Log(clock.elapsed))(reading)
        try:
            inputs = _check(trial)
            facts, flags = preflight.check_gpus(trial)
        except (TrialError, InputError):
            _remove_progress(request.out, is_new_folder)
            raise
        record = Record(request, trial, clock)
        record.fingerprint.update(facts)
        record.flags += flags
        with telemetry.record_telemetry(record, stops):
            outcome = _execute(record, inputs, stops)
        if record.gpu_fault is not None and outcome.reason_code is not ReasonCode.GPU_FAULT:
            outcome = record.gpu_fault
    except (TrialError, InputError):
        if nodes is not None and nodes.rank == 0:
            stops.close()
            dismiss_nodes(nodes, trial.world_size)
        raise
    except Stopped as stopped:
        if record is None:
            print(f"{trial.name}: {stopped} {where}", file=sys.stderr)
            return stopped.outcome.status.exit_code
        outcome = stopped.outcome
    try:
        record.write(outcome)
    except OSError as error:
        print(f"{request.out / RESULT_FILE}: the result cannot be written: {error.strerror}", file=sys.stderr)
        return ExitCode.NOT_WRITTEN
    return outcome.status.exit_code


def _check(trial: Trial) -> Inputs:
    """Check model and data as the workload reads them. Raises InputError."""
    if trial.workload.has_training:
        return load(trial.workload).check_inputs(trial)  # type: ignore[no-any-return]
    return check_trial(trial)


def check_checkpoints_flag(trial: Trial, folder: Path | None) -> None:
    """Raise InputError for a fine-tuning without a checkpoint folder, and for any other trial with one."""
    if trial.workload.has_training != (folder is not None):
        if folder is not None:
            raise InputError(f"--checkpoints: kind {trial.kind!r} has no checkpoints", remedy="leave it out")
        raise InputError("--checkpoints: missing", remedy="name a folder that outlives the fine-tuning's process")


def check_not_finished(out: Path) -> None:
    """Raise InputError if `out` contains a finished trial. A damaged result is replaced."""
    with contextlib.suppress(ResultError):
        finished = TrialResult.read(out / RESULT_FILE)
        raise InputError(
            f"{out / RESULT_FILE}: contains the finished result of {finished.trial_id!r}, which is never overwritten",
            remedy="name another --out, or remove the file",
        )


def prepare_folder(out: Path) -> None:
    """Create the folder and check that a result can be written. Raises InputError."""
    probe = out / f".{RESULT_FILE}.probe"
    try:
        out.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        remedy = "free some space there, or name another --out"
        raise InputError(f"{out}: results cannot be written: {error.strerror}", remedy=remedy) from error


def _remove_progress(out: Path, is_new_folder: bool) -> None:
    """Remove the progress of a rejected trial, and the folder if this process made it."""
    with contextlib.suppress(OSError):
        (out / PROGRESS_FILE).unlink(missing_ok=True)
        if is_new_folder:
            out.rmdir()


def _execute(record: Record, inputs: Inputs, stops: StopSignals) -> Outcome:
    """Measure and return the outcome. InputError, which comes before the first step, is raised."""
    try:
        _measure(record, inputs, stops)
        stops.close()
    except InputError:
        raise
    except (Exception, Stopped) as error:  # noqa: BLE001 - any error ends this trial
        stops.close()
        outcome = termination.classify_error(stops.received or error, record)
        if not isinstance(error, Stopped):
            for line in "".join(traceback.format_exception(error)).rstrip().splitlines()[-TRACEBACK_LINES:]:
                record.log(line)
        position = f"(in {record.phase}, {record.steps_done} of {record.steps_planned} steps done)"
        return replace(outcome, reason=f"{outcome.reason} {position}")
    return Outcome(TrialStatus.SUCCEEDED)


def _measure(record: Record, inputs: Inputs, stops: StopSignals) -> None:
    trial = record.trial
    model_facts, data_facts, _ = inputs
    record.log(f"{trial.name} [{trial.profile}]: {trial.reason}")
    record.fingerprint.update(fingerprint.host_facts())
    record.fingerprint.update(fingerprint.input_facts(trial, model_facts, data_facts))
    fingerprint.write(record.request.out, record.fingerprint)
    load(trial.workload).measure(record, inputs, stops)
