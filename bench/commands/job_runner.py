"""A training by itself, attempt after attempt: what each pod of a Kubernetes Job runs, with no operator behind it.

An attempt is `python -m bench run` with this pod's rank. After one that ended from outside (a pod, a node or a rank was
lost) the next goes on from the last checkpoint, in this pod or in its replacement. The first pod decides: it numbers
the attempts, and writes the training's end beside them, on the volume that all pods share. The others take part until
that end is there. A SIGTERM reaches the attempt, which ends with a checkpoint; the pod that replaces this one goes on.

Standard library alone. Not covered: a bound on how long lost pods are waited for.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.harness.termination import EXIT_BAD_INPUT, EXIT_REFUSED
from bench.records import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN, schema
from bench.records.checksummed import ResultError
from bench.records.paths import CHECKPOINTS_FOLDER, ORDER_VARIABLE, RESULT_FILE
from bench.records.result import TrialResult, TrialStatus
from bench.records.run import Order, OrderEnd
from bench.records.training import is_at_its_limit
from bench.workloads.distributed.torchrun import DID_NOT_COME

PAUSE_SEC = 2.0
NAMED_WITHIN_SEC = 120.0  # a new pod's name is known to the cluster's DNS some seconds after its start
EXIT_STOPPED = 143


class JobRunner:
    """The part of pod `rank`, counted from 0, in the training of an order; `service` gives the pods their names."""

    def __init__(self, order: Order, rank: int, service: str) -> None:
        self.order, self.rank, self._service = order, rank, service
        self.folder = Path(order.shared) / order.run_id
        self._child: subprocess.Popen[str] | None = None
        self._is_stopped = False

    def until_the_end(self) -> int:
        """The pod's exit code: 0 after SUCCEEDED, 143 when it was stopped, 1 after any other end. Raises OSError."""
        signal.signal(signal.SIGTERM, self._stop)
        self.folder.mkdir(parents=True, exist_ok=True)
        while (end := OrderEnd.found(self.folder, self.order.turn)) is None and not self._is_stopped:
            # The first pod's attempts are numbered by their folders; the others only follow, and have no folder.
            number = 1 + max(numbers_in(self.folder, self.order.planned.trial_id), default=0)
            code, last_words = self._attempt(number)
            if self.rank == 0:
                self._judge(number, code, last_words)
            if not self._is_stopped:
                time.sleep(PAUSE_SEC)
        if end is None:
            return EXIT_STOPPED
        print(f"{self.order.run_id}: {end.end.value}: {end.reason or 'trained'}", flush=True)
        return 0 if end.end is TrialStatus.SUCCEEDED else 1

    def _stop(self, _number: int, _frame: object) -> None:
        self._is_stopped = True
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def _attempt(self, number: int) -> tuple[int, str]:
        """The exit code of one attempt, and the last line of its complaint."""
        planned = self.order.planned
        place = self.folder / f"{planned.trial_id}.{number}"
        if self.rank == 0:
            place.mkdir()
        trial = Path(tempfile.gettempdir()) / f"{self.order.run_id}.json"
        trial.write_text(planned.trial.to_text(), encoding="utf-8")
        argv = (
            *(sys.executable, "-m", "bench", "run", "--trial", str(trial), "--out", str(place)),
            *("--checkpoints", str(self.folder / CHECKPOINTS_FOLDER), "--trial-id", planned.trial_id),
            *("--worker", f"worker-{self.rank}", "--run-id", self.order.run_id, "--attempt", str(number)),
        )
        with subprocess.Popen(
            argv, env={**os.environ, **self._place()}, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as self._child:
            if self._is_stopped:
                self._child.send_signal(signal.SIGTERM)
            last = ""
            for line in self._child.stderr or ():
                sys.stderr.write(line)
                last = line.strip() or last
        code, self._child = self._child.returncode, None
        return code, last

    def _place(self) -> Mapping[str, str]:
        """This pod's place among the others; empty for one alone. Raises InputError."""
        count = self.order.planned.trial.world_size
        if count == 1:
            return {}
        first = f"{socket.gethostname().rpartition('-')[0]}-0.{self._service}"
        if self.rank == 0:
            _await_name(first)
        return {
            NODE_COUNT: str(count),
            NODE_RANK: str(self.rank),
            NODE_ADDRESS: first,
            NODE_PORT: str(self.order.port),
            NODE_TOKEN: self.order.token,
        }

    def _judge(self, number: int, code: int, last_words: str) -> None:
        """After an attempt of the first pod: write the training's end, unless another attempt may do better."""
        result = self._result(number)
        if result is None and code in (EXIT_BAD_INPUT, EXIT_REFUSED):
            self._end(number, TrialStatus.FAILED, f"exit {code}: {last_words}")
        elif result is None:
            self._again(number, f"exit {code}, without a result")
        elif result.status is TrialStatus.LOST or (
            result.status is TrialStatus.PREEMPTED and not is_at_its_limit(result.reason)
        ):
            self._again(number, result.reason or result.status.value)
        else:
            self._end(number, result.status, result.reason)

    def _again(self, number: int, reason: str) -> None:
        """Leave it to the next attempt, unless there were too many."""
        print(f"{self.order.run_id}: attempt {number}: {reason}", flush=True)
        if self._is_stopped:
            return
        spent = [one for one in numbers_in(self.folder, self.order.planned.trial_id) if one > self.order.after]
        counted = [one for one in spent if not self._was_outside(one)]
        if len(counted) > self.order.max_restarts:
            self._end(number, TrialStatus.LOST, f"{reason}; train.max_restarts: {self.order.max_restarts} are used up")

    def _was_outside(self, number: int) -> bool:
        """Whether an attempt ended because a pod was drained, preempted, or not there yet."""
        result = self._result(number)
        return result is not None and (result.status is TrialStatus.PREEMPTED or DID_NOT_COME in (result.reason or ""))

    def _result(self, number: int) -> TrialResult | None:
        try:
            return TrialResult.read(self.folder / f"{self.order.planned.trial_id}.{number}" / RESULT_FILE)
        except ResultError:
            return None

    def _end(self, number: int, end: TrialStatus, reason: str | None) -> None:
        OrderEnd(attempt=number, end=end, reason=reason).write(self.folder, self.order.turn)


def numbers_in(folder: Path, trial_id: str) -> list[int]:
    """The numbers of the attempts that have a folder here."""
    matches = (re.fullmatch(rf"{re.escape(trial_id)}\.([0-9]{{1,9}})", path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def order_of(environment: Mapping[str, str]) -> Order:
    """The order that the Job gave its pods. Raises InputError."""
    text = environment.get(ORDER_VARIABLE, "")
    try:
        document: Any = json.loads(text)
        return schema.from_json(Order, document, ORDER_VARIABLE)
    except ValueError as error:
        raise InputError(
            f"{ORDER_VARIABLE}: not the order of a training: {error}; `inv train --job` writes it"
        ) from None


def _await_name(name: str) -> None:
    """Until the name is known. Raises InputError."""
    until = time.monotonic() + NAMED_WITHIN_SEC
    while True:
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            if time.monotonic() > until:
                raise InputError(f"{name}: not known within {NAMED_WITHIN_SEC:g} s: {error}; is DNS there?") from None
            time.sleep(1.0)
        else:
            return
