"""Notifications of a training's Job: the first pod reads the attempt's progress from the volume and sends them."""

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.notify.events import RunWatch
from bench.notify.sender import Sender, to_webhook
from bench.records import paths, schema
from bench.records.atomic_files import read_regular
from bench.records.checksummed import ResultError
from bench.records.result import TrialResult
from bench.records.run import Progress, TrainingJobSpec
from bench.records.status import Outcome, ReasonCode

SOURCE = "job"
_MAX_PROGRESS_BYTES = 100_000


class JobWatch(RunWatch):
    """Watch of a Job, whose notifications can be waited for: the machine may go away after them."""

    flush: Callable[[], object]


@contextlib.contextmanager
def open_watch(order: TrainingJobSpec, rank: int, folder: Path) -> Iterator[JobWatch | None]:
    """Yield the watch of the order's webhook; None in other pods than the first, or without a webhook.

    The key of the signature is removed from the environment, which the attempts inherit. `folder` is the run's.
    """
    key, target = os.environ.pop(paths.NOTIFY_KEY_VARIABLE, ""), order.notify
    if target is None or rank != 0:
        yield None
        return
    numbers = attempt_numbers(folder, order.planned.trial_id)
    began, usd_per_sec = time.monotonic() - held_sec(order, folder), target.usd_per_sec
    receivers = {"notify.url": to_webhook(target, key.encode() or None)}
    with Sender(receivers, lambda line: print(f"{order.run_id}: {line}", flush=True)) as sender:
        watch = JobWatch(
            run_id=order.run_id,
            source=SOURCE,
            send=sender.send,
            stalled_sec=target.stalled_sec,
            budget_usd=target.budget_usd,
            usd_per_sec=usd_per_sec,
            spent_usd=lambda: None if usd_per_sec is None else usd_per_sec * (time.monotonic() - began),
        )
        watch.flush = sender.flush
        if numbers and numbers[-1] > order.after:
            cause = Outcome.of(ReasonCode.WORKER_LOST, "the first pod was replaced")
            if (result := read_result(order, folder, numbers[-1])) is not None and result.outcome.is_transient:
                cause = result.outcome
            watch.on_loss(cause)

        def tick() -> None:
            last = max(attempt_numbers(folder, order.planned.trial_id), default=None)
            if last is not None and (progress := _read_progress(_attempt_folder(order, folder, last))) is not None:
                watch.on_progress(last, progress)
            watch.tick()

        sender.tick = tick
        yield watch


def attempt_numbers(folder: Path, trial_id: str) -> list[int]:
    """List the numbers of the attempts that have a folder in `folder`."""
    matches = (re.fullmatch(rf"{re.escape(trial_id)}\.([0-9]{{1,9}})", path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def read_result(order: TrainingJobSpec, folder: Path, number: int) -> TrialResult | None:
    """Return the result of an attempt; None without a valid one."""
    try:
        return TrialResult.read(_attempt_folder(order, folder, number) / paths.RESULT_FILE)
    except ResultError:
        return None


def _attempt_folder(order: TrainingJobSpec, folder: Path, number: int) -> Path:
    return folder / f"{order.planned.trial_id}.{number}"


def _read_progress(attempt_folder: Path) -> Progress | None:
    """Read an attempt's progress; None before its first one, or if it cannot be read."""
    try:
        content = read_regular(attempt_folder / paths.PROGRESS_FILE, max_bytes=_MAX_PROGRESS_BYTES, follow=False)
        return schema.from_json(Progress, schema.parse(content), paths.PROGRESS_FILE)
    except (OSError, ValueError):
        return None


def held_sec(order: TrainingJobSpec, folder: Path) -> float:
    """Return the seconds for which the pods were held: earlier turns by their attempts, this turn from its first one.

    Times are those of the files, as in the operator's ledger, and so is the current one, that of a new file: the clocks
    of the volume's server and of this node may differ. Raises OSError.
    """
    total_sec, began_at = 0.0, None
    for number in attempt_numbers(folder, order.planned.trial_id):
        with contextlib.suppress(OSError):  # a file that is just being replaced
            times = [path.stat().st_mtime for path in _attempt_folder(order, folder, number).iterdir()]
            if times and number > order.after:
                began_at = min(times) if began_at is None else began_at
            elif times:
                total_sec += max(times) - min(times)
    if began_at is None:
        return total_sec
    with tempfile.TemporaryFile(dir=folder) as file:
        return total_sec + max(0.0, os.fstat(file.fileno()).st_mtime - began_at)
