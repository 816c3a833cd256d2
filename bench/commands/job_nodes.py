"""Nodes that a training's Job gives back after its success, without an operator.

The pods keep their GPUs after the last step, so that no other pod can come to their nodes. The first pod verifies what
the run leaves on the shared volume, asks every pod for its node, reads the pool, notifies, and requests a smaller size
only if the pool still is the confirmed one and the Job holds all its GPUs; otherwise it keeps the nodes, with the
reason. Each step is on the volume (nodes.json) before it is made: a replaced pod goes on, and so does `inv collect`.

The pods end when they are told to stop, which the removal of their nodes does, or when the pool has its new size.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bench.commands.job_notifications import JobWatch
from bench.nodes.pool import PoolError, Pools, PoolState, not_whole, open_pools
from bench.notify.events import time_text
from bench.records import paths, schema
from bench.records.atomic_files import read_regular, sha256_of, write_atomic
from bench.records.checksummed import ResultError
from bench.records.nodes import NodesRecord, NodesState
from bench.records.result import TrialResult
from bench.records.run import TrainingJobEnd, TrainingJobSpec
from bench.records.status import TrialStatus, escape_controls
from bench.records.training import TrainingRecord

POLL_SEC = 2.0
HOLD_SEC = 1800.0  # for which the pods keep their GPUs after the training, at most
ANSWER_SEC = 300.0  # for which the first pod waits for the others
MARGIN_SEC = 300.0  # for which every pod must go on to hold its GPUs when the size is requested
RETRY_SEC, RETRY_PAUSE_SEC = 600.0, 15.0  # for which a temporary failure of the provider is retried
MAX_ANSWER_BYTES, MAX_MANIFEST_BYTES = 10_000, 1_000_000
WEIGHTS_FILE = "adapter_model.safetensors"
T = TypeVar("T")


class _Stopped(Exception):
    """The pod was told to stop."""


class _Kept(Exception):
    """The reason for which the nodes are kept."""


@dataclass(frozen=True, kw_only=True)
class HoldAnswer:
    """A pod's answer to the first pod: the question's text, its node's IP address, and how long it holds its GPUs."""

    question: str
    address: str
    left_sec: float


class JobNodes:
    """One pod's part in giving nodes back. `plan` is the order's; `address` is the IP address of the pod's node."""

    def __init__(
        self,
        order: TrainingJobSpec,
        plan: NodesRecord,
        *,
        rank: int,
        address: str,
        folder: Path,
        is_stopped: Callable[[], bool],
        watch: JobWatch | None,
    ) -> None:
        self._order, self._plan, self._rank, self._address = order, plan, rank, address
        self._folder, self._is_stopped, self._watch = folder, is_stopped, watch
        self._record = replace(plan, run_id=order.run_id)
        self._deadline = float("inf")
        self._has_told = False

    def check_later(self) -> None:
        """Check in a thread, at the start of the training, that the pool can be read; report it if not."""
        threading.Thread(target=self._check, name="check of the node pool", daemon=True).start()

    def finish(self, end: TrainingJobEnd) -> bool:
        """Give the nodes back, or hold this pod's GPUs while the first pod does.

        Returns False if another pod must go on: this one was stopped before the request. Raises OSError.
        """
        self._deadline = time.monotonic() + HOLD_SEC
        try:
            if self._rank == 0:
                self._lead(end)
            else:
                self._hold()
        except _Stopped:
            return self._read().state is not NodesState.PLANNED
        return True

    def _check(self) -> None:
        try:
            size = self._read_pool(open_pools(self._plan)).size
        except PoolError as error:
            self._report(f"the Job may not be able to give its nodes back: {self._explain(error)}")
        else:
            self._log(f"after success, pool {self._plan.pool} is shrunk from {size} to {self._plan.to_size} nodes")

    # The first pod

    def _lead(self, end: TrainingJobEnd) -> None:
        """Give the nodes back. If that fails, record it before the error is raised: the other pods hold their GPUs."""
        try:
            self._give_back(end)
        except _Stopped:
            raise
        except Exception as error:
            self._record_failure(error)
            raise

    def _record_failure(self, error: Exception) -> None:
        """Record that the nodes are kept, unless their removal was requested. Raises OSError and _Stopped."""
        deadline = time.monotonic() + RETRY_SEC
        while True:
            try:
                for path in (self._hold_file, self._held_file(self._rank)):
                    path.unlink(missing_ok=True)  # space for the record on a full disk
                self._record = self._read()
                if self._record.state is NodesState.PLANNED:
                    self._save(state=NodesState.KEPT, reason=f"{type(error).__name__}: {error}")
            except OSError as failure:
                if time.monotonic() > deadline:
                    raise
                self._log(f"the other pods hold their GPUs: {failure}")
            else:
                return
            self._sleep(RETRY_PAUSE_SEC)

    def _give_back(self, end: TrainingJobEnd) -> None:
        self._record = self._read()
        if self._record.state in (NodesState.DONE, NodesState.KEPT):
            return
        try:
            if self._record.state is NodesState.PLANNED:
                self._save(ended_at=self._record.ended_at or time_text())
                self._verify_outputs(end)
            pools = self._retry(lambda: open_pools(self._plan))
            self._retry(lambda: self._request(pools))
            self._await_removal(pools)
        except _Kept as kept:
            self._save(state=NodesState.KEPT, reason=str(kept))
            self._report(f"its nodes are kept and still cost money: {kept}; `inv collect` decides again")

    def _verify_outputs(self, end: TrainingJobEnd) -> None:
        """Verify what the run leaves on the volume, and write its SHA256SUMS. Raises _Kept."""
        try:
            digests = dict(verified_outputs(self._order, self._folder, end))
            rows = "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items()))
            write_atomic(self._folder / paths.SUMS_FILE, rows.encode())
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise _Kept(f"its results cannot be verified: {error}") from error

    def _request(self, pools: Pools) -> None:
        """Request the new size, or find that an earlier pod has. Raises PoolError, _Kept and _Stopped."""
        wanted, confirmed = self._plan.to_size, self._plan.from_size
        pool = self._read_pool(pools)
        if pool.size == wanted and self._record.state is NodesState.REQUESTED:
            return
        addresses = self._ask_pods()
        pool = self._read_pool(pools)  # as the answers are newer than the first one
        if pool.size != confirmed:
            raise _Kept(f"pool {self._plan.pool} was changed meanwhile: it had {confirmed} nodes, now {pool.size}")
        if (problem := not_whole(self._plan, pool, addresses)) is not None:
            raise _Kept(problem)
        self._save(state=NodesState.REQUESTED, requested_at=time_text())
        if not self._has_told:
            self._report(f"nodes: pool {self._plan.pool} is shrunk now, {confirmed} -> {wanted}")
            if self._watch is not None:
                self._watch.flush()
            self._has_told = True
        self._save(work_request_id=self._resize(pools, pool))

    def _resize(self, pools: Pools, pool: PoolState) -> str | None:
        """Request the size under the etag of `pool`; None if the request was accepted and its response lost."""
        wanted = self._plan.to_size or 0
        try:
            return pools.resize(str(self._plan.pool_id), wanted, pool.etag)
        except PoolError:
            if self._read_pool(pools).size != wanted:
                raise
            return None

    def _await_removal(self, pools: Pools) -> None:
        """Wait until the nodes are gone, if this pod's is not one of them. Raises _Stopped."""
        failure: str | None = None
        while time.monotonic() < self._deadline:
            try:
                pool = self._read_pool(pools)
            except PoolError as error:
                self._log(str(error))
            else:
                if pool.size == self._plan.to_size and len(pool.addresses) <= pool.size:
                    self._save(state=NodesState.DONE, finished_at=time_text())
                    self._report(f"nodes: given back ({self._plan.pool}: {self._plan.from_size} -> {pool.size})")
                    return
                if pool.failures and pool.failures[0] != failure:
                    failure = pool.failures[0]
                    self._report(f"nodes: one cannot be removed and still costs money: {failure}")
            self._sleep(RETRY_PAUSE_SEC)
        self._report("nodes: not gone yet, and may still cost money: `inv collect` goes on")

    def _ask_pods(self) -> list[str]:
        """Return the address of the node of each pod, as it answers now. Raises _Kept and _Stopped."""
        question, size = secrets.token_hex(16), self._order.planned.trial.world_size
        self._answer(question)
        write_atomic(self._hold_file, json.dumps({"question": question}).encode())
        deadline = time.monotonic() + ANSWER_SEC
        while True:
            answers = [self._read_answer(rank) for rank in range(size)]
            current = [answer for answer in answers if answer is not None and answer.question == question]
            if len(current) == size:
                if min(answer.left_sec for answer in current) < MARGIN_SEC:
                    raise _Kept(f"a pod holds its GPUs for less than {MARGIN_SEC:g} s more")
                return [answer.address for answer in current]
            if time.monotonic() > deadline:
                raise _Kept(f"{size - len(current)} of the {size} pods did not answer within {ANSWER_SEC:g} s")
            self._sleep(POLL_SEC)

    # Every other pod

    def _hold(self) -> None:
        """Answer the first pod until it has ended, this pod is stopped, or the time is up. Raises _Stopped."""
        answered = ""
        while time.monotonic() < self._deadline and self._read().state not in (NodesState.DONE, NodesState.KEPT):
            question = _read_json(self._hold_file).get("question")
            if isinstance(question, str) and question != answered:
                self._answer(question)
                answered = question
            self._sleep(POLL_SEC)

    # Both

    def _answer(self, question: str) -> None:
        left_sec = min(self._deadline - time.monotonic(), HOLD_SEC)
        answer = HoldAnswer(question=question, address=self._address, left_sec=left_sec)
        write_atomic(self._held_file(self._rank), json.dumps(schema.to_json(answer)).encode())

    def _read_answer(self, rank: int) -> HoldAnswer | None:
        try:
            return schema.from_json(HoldAnswer, _read_json(self._held_file(rank)))
        except ValueError:
            return None

    @property
    def _hold_file(self) -> Path:
        return self._folder / paths.HOLD_FILE.format(turn=self._order.turn)

    def _held_file(self, rank: int) -> Path:
        return self._folder / paths.HELD_FILE.format(turn=self._order.turn, rank=rank)

    def _read(self) -> NodesRecord:
        """Read the record on the volume; the plan before the first step. A damaged one counts as kept."""
        path = self._folder / paths.NODES_FILE
        if not path.exists():
            return self._record
        try:
            return NodesRecord.read(path)
        except ResultError as error:
            return replace(self._record, state=NodesState.KEPT, reason=str(error))

    def _save(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        self._record.write(self._folder)

    def _read_pool(self, pools: Pools) -> PoolState:
        return pools.read(str(self._plan.pool_id))

    def _retry(self, call: Callable[[], T]) -> T:
        """Repeat a call that fails temporarily. Raises _Kept and _Stopped."""
        deadline = time.monotonic() + RETRY_SEC
        while True:
            try:
                return call()
            except PoolError as error:
                if not error.is_transient or time.monotonic() > deadline:
                    raise _Kept(self._explain(error)) from error
                self._log(str(error))
            self._sleep(RETRY_PAUSE_SEC)

    def _explain(self, error: PoolError) -> str:
        policy = None if self._plan.job is None else self._plan.job.policy
        return f"{error}; required policy: {policy}" if error.is_denied and policy else str(error)

    def _sleep(self, seconds: float) -> None:
        """Sleep, in short parts. Raises _Stopped."""
        until = time.monotonic() + seconds
        while not self._is_stopped() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 1.0))
        if self._is_stopped():
            raise _Stopped

    def _report(self, text: str) -> None:
        """Log a line and notify it."""
        self._log(text)
        if self._watch is not None:
            self._watch.on_nodes(escape_controls(text))

    def _log(self, text: str) -> None:
        print(f"{self._order.run_id}: {escape_controls(text)}", flush=True)


def verified_outputs(order: TrainingJobSpec, folder: Path, end: TrainingJobEnd) -> Iterator[tuple[str, str]]:
    """Yield each file that a successful training leaves on the volume with its sha256, after verifying it.

    Paths are relative to the run's `folder`. Raises OSError, ResultError, and ValueError, LookupError, TypeError or
    AttributeError for a damaged manifest.
    """
    attempt = folder / f"{order.planned.trial_id}.{end.attempt}"
    result = TrialResult.read(attempt / paths.RESULT_FILE)
    expected = (TrialStatus.SUCCEEDED, order.planned.trial_id, end.attempt)
    if (result.status, result.trial_id, result.attempt) != expected:
        raise ValueError(f"{attempt / paths.RESULT_FILE} is of another attempt or status")
    record, adapter = TrainingRecord.read(attempt / paths.TRAINING_FILE), attempt / paths.ADAPTER_FOLDER
    if record.adapter_sha256 is None or sha256_of(adapter / WEIGHTS_FILE) != record.adapter_sha256:
        raise ValueError(f"{adapter / WEIGHTS_FILE} is not the adapter of {paths.TRAINING_FILE}")
    for name, size in record.adapter_files.items():
        if (adapter / name).stat().st_size != size:
            raise ValueError(f"{adapter / name} has not the {size:,} bytes of {paths.TRAINING_FILE}")
    files = [path for path in attempt.rglob("*") if path.is_file() and not path.is_symlink()]
    yield from ((str(path.relative_to(folder)), sha256_of(path)) for path in files)
    for checkpoint in sorted((folder / paths.CHECKPOINTS_FOLDER).glob("step-*")):
        manifest = schema.parse_object(read_regular(checkpoint / paths.MANIFEST_FILE, max_bytes=MAX_MANIFEST_BYTES))
        for name, facts in manifest["files"].items():
            path = checkpoint / Path(name).name
            if (digest := sha256_of(path)) != facts["sha256"]:
                raise ValueError(f"{path} differs from its manifest")
            yield str(path.relative_to(folder)), digest


def _read_json(path: Path) -> dict[str, Any]:
    """Read a small JSON object; empty if it is missing or damaged."""
    try:
        return schema.parse_object(read_regular(path, max_bytes=MAX_ANSWER_BYTES, follow=False))
    except (OSError, ValueError):
        return {}
