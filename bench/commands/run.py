"""One trial, from its file to its result: check, import, measure, write.

A process runs one trial and exits. Every end but SIGKILL leaves a result.json with that end and everything measured;
bad input is refused before the first step and leaves no result. The module of the trial's kind measures, with
`measure(record, inputs, stops)`.
"""

import contextlib
import importlib
import sys
import traceback
from pathlib import Path

from bench.data.inputs import InputError, InputRejected, Inputs
from bench.data.model_folder import config_of
from bench.data.trial_inputs import check_trial
from bench.harness import termination
from bench.harness.record import Clock, Record, Request
from bench.harness.termination import Stopped, Stops
from bench.machine import fingerprint, isolation, telemetry
from bench.predict import flops
from bench.records import Trial, TrialError
from bench.records.checksummed import ResultError
from bench.records.paths import EXIT_NOT_WRITTEN, RESULT_FILE
from bench.records.result import TrialResult, TrialStatus
from bench.records.trial import RANKED
from bench.workloads.distributed.multi_node import NodeList

# The module of each kind. They import torch, so only the trial's own is imported.
KINDS = {
    "training": "bench.workloads.training",
    "hardware": "bench.workloads.hardware",
    "loading": "bench.workloads.loading",
    "inference": "bench.workloads.inference",
    "distributed": "bench.workloads.distributed.distributed",
    "finetune": "bench.workloads.finetune.finetune",
}
TRACEBACK_LINES = 12
# Enough for any result: a full disk is found before the work.
PROBE_BYTES = 256 * 1024


def run(request: Request) -> int:
    """Run the trial; returns the process's exit code (see `bench.harness.termination`). No error of a trial is raised."""
    stops, clock = Stops(), Clock()
    stops.install()
    record: Record | None = None
    try:
        trial = request.trial or Trial.read(request.trial_file)
        stops.set_deadline(trial.deadline_sec)
        refuse_checkpoints(trial, request.checkpoints)
        machines = NodeList.from_environment() if trial.kind in RANKED else None
        if machines is not None and machines.rank > 0:
            with telemetry.of_gpus(request, trial):
                return importlib.import_module(KINDS[trial.kind]).follow(request, trial, machines, stops)  # type: ignore[no-any-return]
        refuse_finished(request.out)
        inputs = _check(trial)
        found = isolation.look_around(trial, strict=request.strict)
        prepare_folder(request.out)
        record = Record(request, trial, clock)
        record.fingerprint.update(found.facts)
        record.flags += found.flags
        with telemetry.beside(record):
            end, reason = _attempt(record, inputs, stops)
        if request.strict and record.flags and end is TrialStatus.SUCCEEDED:
            end, reason = TrialStatus.FAILED, f"refused by --strict: {record.flags[0]}"
    except (TrialError, InputError) as error:
        print(error, file=sys.stderr)
        return termination.EXIT_REFUSED if isinstance(error, InputRejected) else termination.EXIT_BAD_INPUT
    except Stopped as stopped:
        if record is None:
            print(f"{request.trial_file}: {stopped.reason}, before it began", file=sys.stderr)
            return termination.EXIT_CODES.get(stopped.end, 1)
        end, reason = stopped.end, stopped.reason
    try:
        record.write(end, reason)
    except OSError as error:
        print(f"{request.out / RESULT_FILE}: the result cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_NOT_WRITTEN
    return termination.EXIT_CODES.get(end, 1)


def _check(trial: Trial) -> Inputs:
    """Check model and data as the trial's kind reads them. Raises InputError."""
    if trial.kind == "finetune":
        return importlib.import_module(KINDS[trial.kind]).check_inputs(trial)  # type: ignore[no-any-return]
    return check_trial(trial)


def refuse_checkpoints(trial: Trial, folder: Path | None) -> None:
    """Raises InputError for a fine-tuning without a folder for its checkpoints, and for any other trial with one."""
    if (trial.kind == "finetune") != (folder is not None):
        raise InputError(
            f"--checkpoints: kind {trial.kind!r} has none; leave it out"
            if folder is not None
            else "--checkpoints: missing; a fine-tuning needs a folder that outlives its process"
        )


def refuse_finished(out: Path) -> None:
    """Raises InputError if `out` holds a finished trial. A damaged result is replaced."""
    with contextlib.suppress(ResultError):
        finished = TrialResult.read(out / RESULT_FILE)
        raise InputError(
            f"{out / RESULT_FILE}: holds the finished result of {finished.trial_id!r}, which is never overwritten; "
            "name another --out, or remove it"
        )


def prepare_folder(out: Path) -> None:
    """Check that a result can be written, before the work. Raises InputError."""
    probe = out / f".{RESULT_FILE}.probe"
    try:
        out.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{out}: results cannot be written there: {error.strerror}; name another --out") from None


def _attempt(record: Record, inputs: Inputs, stops: Stops) -> tuple[TrialStatus, str | None]:
    """Do the work and return its end. InputError is raised: it comes before the first step."""
    try:
        _measure(record, inputs, stops)
        stops.close()
    except InputError:
        raise
    except (Exception, Stopped) as error:  # noqa: BLE001 - any error of the stack is this trial's end
        stops.close()
        end, reason = termination.end_of(stops.stopped or error, record)
        if not isinstance(error, Stopped):
            for line in "".join(traceback.format_exception(error)).rstrip().splitlines()[-TRACEBACK_LINES:]:
                record.log(line)
        return end, f"{reason} (in {record.phase}, {record.steps_done} of {record.steps_planned} steps done)"
    return TrialStatus.SUCCEEDED, None


def _measure(record: Record, inputs: Inputs, stops: Stops) -> None:
    trial = record.trial
    model_facts, data_facts, _ = inputs
    record.log(f"{trial.name} [{trial.profile}]: {trial.reason}")
    record.fingerprint.update(fingerprint.host_facts())
    record.fingerprint.update(fingerprint.input_facts(trial, model_facts, data_facts))
    fingerprint.write(record.request.out, record.fingerprint)
    if record.on_show is not None:
        is_training = trial.kind in ("training", "finetune")
        record.flop_per_token = flops.of_trial(config_of(Path(trial.model)), trial).model if is_training else None
    importlib.import_module(KINDS[trial.kind]).measure(record, inputs, stops)
