"""Engine of a training: runs attempts until it ends, without an operator, as a job of one host or in each pod.

An attempt is `python -m bench run`, in a pod with that pod's rank. After an attempt that ended for an external reason
(a pod, a node or a rank was lost), the next one resumes from the last checkpoint, here or in the pod's replacement. The
first pod decides: it numbers the attempts, and writes the training's end next to them, on the volume that all pods
share. The other pods take part until that end exists; an attempt of theirs that still waits for the first pod is then
stopped. A SIGTERM is passed to the attempt, which writes a checkpoint and ends; the replacing pod resumes. A GPU with a
fault and a full volume end the training: the operator repairs that, and resumes.

Once the end exists every pod exits 0, however the training ended, so that Kubernetes starts none again. The end is the
volume's; the pod's status repeats it as the termination message.

Only the standard library. Not covered: a limit on the wait for lost pods.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TextIO

from bench.data.inputs import InputError
from bench.records import paths, schema
from bench.records.checksummed import ResultError
from bench.records.result import TrialResult
from bench.records.run import TrainingJobEnd, TrainingJobSpec
from bench.records.status import EXIT_CAUSES, ExitCode, Outcome, ReasonCode
from bench.workloads.ranks.watch import exit_with_parent

RETRY_DELAY_SEC = 2.0
LOG_FILE = "log.txt"  # in an attempt's folder: what it printed
TERMINATION_LOG = Path("/dev/termination-log")  # what is written there becomes part of the pod's status
FINAL = (ReasonCode.GPU_FAULT, ReasonCode.NOT_WRITTEN)  # another attempt would meet the same GPU or volume


class JobRunner:
    """Runner of one pod's attempts. `rank` counts from 0, `service` is the headless Service that names the pods."""

    def __init__(self, spec: TrainingJobSpec, rank: int, service: str) -> None:
        self.spec, self.rank, self._service = spec, rank, service
        self.folder = Path(spec.shared) / spec.run_id
        self._child: subprocess.Popen[str] | None = None
        self._is_stopped = False

    def run(self) -> int:
        """Run attempts until the end and return the exit code. Raises OSError.

        0 if the training has ended, 143 if this pod was stopped before.
        """
        signal.signal(signal.SIGTERM, self._stop)
        self.folder.mkdir(parents=True, exist_ok=True)
        end = self._run_attempts()
        if end is None:
            return ExitCode.STOPPED
        text = f"{end.end.value}: {end.outcome.text or 'trained'}"
        print(f"{self.spec.run_id}: {text}", flush=True)
        while self.spec.keeps_pod and not ((self.folder / paths.COLLECTED_FILE).exists() or self._is_stopped):
            time.sleep(RETRY_DELAY_SEC)
        with contextlib.suppress(OSError), TERMINATION_LOG.open("r+", encoding="utf-8") as file:
            file.write(text)
        return ExitCode.OK

    def _run_attempts(self) -> TrainingJobEnd | None:
        """Run attempts until the training's end, which is returned; None if this pod is stopped before."""
        while (end := self._read_end()) is None and not self._is_stopped:
            # The first pod numbers its attempts by their folders; the other pods write no folder.
            number = 1 + max(attempt_numbers(self.folder, self.spec.planned.trial_id), default=0)
            try:
                code, last_line = self._run_attempt(number)
            except FileExistsError:  # by another copy of this pod, whose node was lost and has come back
                time.sleep(RETRY_DELAY_SEC)
                continue
            if self.rank == 0:
                self._handle_exit(number, code, last_line)
            if not self._is_stopped and self._read_end() is None:
                time.sleep(RETRY_DELAY_SEC)
        return end

    def _read_end(self) -> TrainingJobEnd | None:
        return TrainingJobEnd.read_or_none(self.folder, self.spec.turn)

    def _stop_at_end(self, child: subprocess.Popen[str]) -> None:
        """Stop an attempt that runs although the training has ended: it waits for a first pod that does not come."""
        while child.poll() is None:
            if self._read_end() is not None:
                child.terminate()
                return
            time.sleep(RETRY_DELAY_SEC)

    def _stop(self, _number: int, _frame: object) -> None:
        self._is_stopped = True
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def _run_attempt(self, number: int) -> tuple[int, str]:
        """Run one attempt and return its exit code and the last line of its stderr."""
        planned, out = self.spec.planned, _attempt_folder(self.spec, self.folder, number)
        if self.rank == 0:
            out.mkdir()
        log_path = out / LOG_FILE if self.rank == 0 else Path(os.devnull)
        with (
            tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as trial,
            log_path.open("w", encoding="utf-8", buffering=1) as log,
        ):
            trial.write(planned.trial.to_text())
            trial.flush()
            argv = (
                *(sys.executable, "-m", "bench", "run", "--trial", trial.name, "--out", str(out)),
                *("--checkpoints", str(self.folder / paths.CHECKPOINTS_FOLDER), "--trial-id", planned.trial_id),
                *("--worker", f"worker-{self.rank}", "--run-id", self.spec.run_id, "--attempt", str(number)),
            )
            return self._follow(argv, log)

    def _follow(self, argv: tuple[str, ...], log: TextIO) -> tuple[int, str]:
        with subprocess.Popen(
            argv,
            env={**os.environ, **self._rendezvous_variables()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(exit_with_parent, os.getpid()),
            encoding="utf-8",
            errors="replace",
        ) as self._child:
            if self._is_stopped:
                self._child.send_signal(signal.SIGTERM)
            threading.Thread(target=self._stop_at_end, args=(self._child,), daemon=True).start()
            last = ""
            for line in self._child.stdout or ():
                sys.stderr.write(line)
                last = line.strip() or last
                with contextlib.suppress(OSError, ValueError):  # a full disk stops the log, not the training
                    log.write(line)
        code, self._child = self._child.returncode, None
        return code, last

    def _rendezvous_variables(self) -> Mapping[str, str]:
        """Build the environment variables of the ranks' rendezvous; empty if all ranks are on this host."""
        hostname = socket.gethostname()
        if self.spec.port is None:
            return {}
        # The service's name is also that of the pod which this one replaces, while that is listed on its dead node.
        first = hostname if self.rank == 0 else f"{hostname.rpartition('-')[0]}-0.{self._service}"
        return {
            paths.NODE_COUNT: str(self.spec.planned.trial.world_size),
            paths.NODE_RANK: str(self.rank),
            paths.NODE_ADDRESS: first,
            paths.NODE_PORT: str(self.spec.port),
            paths.NODE_TOKEN: self.spec.token,
        }

    def _handle_exit(self, number: int, code: int, last_line: str) -> None:
        """Write the training's end after an attempt of the first pod, unless another attempt may succeed."""
        result = _read_result(self.spec, self.folder, number)
        if result is not None:
            outcome = result.outcome
        elif code in EXIT_CAUSES:
            outcome = Outcome.of(EXIT_CAUSES[code], last_line)
        elif code < 0:
            outcome = Outcome.of(ReasonCode.KILLED, f"killed by {signal.Signals(-code).name}")
        else:
            outcome = Outcome.of(ReasonCode.NO_RESULT, f"exit {code}, without a result")
        if outcome.is_transient and outcome.reason_code not in FINAL:
            self._record_loss(number, outcome)
        else:
            self._write_end(number, outcome)

    def _record_loss(self, number: int, outcome: Outcome) -> None:
        """Log a lost attempt, and write the training's end if no restart is left."""
        reason = outcome.text or outcome.status.value
        print(f"{self.spec.run_id}: attempt {number}: {reason}", flush=True)
        cause = json.dumps({"reason": reason, "reason_code": outcome.reason_code})
        (_attempt_folder(self.spec, self.folder, number) / paths.LOSS_FILE).write_text(cause, encoding="utf-8")
        if self._is_stopped:
            return
        attempts = attempt_numbers(self.folder, self.spec.planned.trial_id)
        counted = [attempt for attempt in attempts if attempt > self.spec.after and not self._is_external(attempt)]
        if len(counted) > self.spec.max_restarts:
            why = f"{reason}; train.max_restarts: {self.spec.max_restarts} are used up"
            self._write_end(number, Outcome.of(ReasonCode.RESTARTS_USED_UP, why))

    def _is_external(self, number: int) -> bool:
        """Check whether an attempt ended because a pod was drained, preempted, or had not started yet."""
        result = _read_result(self.spec, self.folder, number)
        cause = None if result is None else result.outcome.cause
        return cause is not None and not cause.counts_as_attempt

    def _write_end(self, number: int, outcome: Outcome) -> None:
        TrainingJobEnd(
            attempt=number,
            end=outcome.status,
            reason=outcome.reason,
            reason_code=outcome.reason_code,
            remedy=outcome.remedy,
        ).write(self.folder, self.spec.turn)


def attempt_numbers(folder: Path, trial_id: str) -> list[int]:
    """List the numbers of the attempts that have a folder in `folder`."""
    matches = (re.fullmatch(rf"{re.escape(trial_id)}\.([0-9]{{1,9}})", path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def _read_result(spec: TrainingJobSpec, folder: Path, number: int) -> TrialResult | None:
    """Return the result of an attempt; None without a valid one."""
    try:
        return TrialResult.read(_attempt_folder(spec, folder, number) / paths.RESULT_FILE)
    except ResultError:
        return None


def _attempt_folder(spec: TrainingJobSpec, folder: Path, number: int) -> Path:
    return folder / f"{spec.planned.trial_id}.{number}"


def read_spec(environment: Mapping[str, str]) -> TrainingJobSpec:
    """Parse the job spec in the pod's environment. Raises InputError."""
    text = environment.get(paths.JOB_SPEC_VARIABLE, "")
    try:
        return schema.from_json(TrainingJobSpec, schema.parse(text), paths.JOB_SPEC_VARIABLE)
    except ValueError as error:
        raise InputError(
            f"{paths.JOB_SPEC_VARIABLE}: not a job spec: {error}",
            remedy="start the training with `inv train`",
        ) from error
