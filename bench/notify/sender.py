"""A thread that delivers notifications, so that a slow or broken receiver never delays or fails a run."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from bench.notify import webhook
from bench.notify.events import Notification
from bench.notify.webhook import WebhookError
from bench.records.run import NotifyTarget

if TYPE_CHECKING:
    from typing import Self

Deliver = Callable[[bytes], None]
MAX_QUEUED = 1000
RETRY_DELAYS_SEC = (2.0, 8.0)
CLOSE_TIMEOUT_SEC = 60.0  # for the last notification: the run's end
ERROR_TIMEOUT_SEC = 5.0  # a person waits, or the run goes on elsewhere
TICK_SEC = 1.0


def to_webhook(target: NotifyTarget, key: bytes | None) -> Deliver:
    """Return a delivery to a webhook with retries. It raises WebhookError."""

    def deliver(body: bytes) -> None:
        for delay_sec in (*RETRY_DELAYS_SEC, None):
            try:
                webhook.post(target, body, key)
            except WebhookError as error:
                if delay_sec is None or not error.is_transient:
                    raise
                time.sleep(delay_sec)
            else:
                return

    return deliver


class Sender:
    """Delivers notifications in order, each to every receiver. Use as a context manager.

    `receivers` are deliveries by the name of their setting. `log` gets one line for each that failed. `tick` is called
    about once a second.
    """

    def __init__(self, receivers: Mapping[str, Deliver], log: Callable[[str], object]) -> None:
        self._receivers, self._log = receivers, log
        self.tick: Callable[[], object] = lambda: None
        self._queue: queue.Queue[Notification | threading.Event | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._deliver_all, name="notifications", daemon=True)

    def send(self, notification: Notification) -> None:
        """Queue a notification. Returns immediately; never raises."""
        try:
            self._queue.put_nowait(notification)
        except queue.Full:
            self._log(f"notification not sent: {notification.event.value}: {MAX_QUEUED:,} wait already")

    def flush(self) -> None:
        """Wait until the queued notifications were delivered or have failed, at most CLOSE_TIMEOUT_SEC."""
        done = threading.Event()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(done)
            done.wait(CLOSE_TIMEOUT_SEC)

    def __enter__(self) -> Self:
        if self._receivers:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Wait for the queued notifications: CLOSE_TIMEOUT_SEC, or after an error or Ctrl-C ERROR_TIMEOUT_SEC."""
        if not self._receivers:
            return
        timeout_sec = CLOSE_TIMEOUT_SEC if kind is None else ERROR_TIMEOUT_SEC
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout_sec)
        self._thread.join(timeout_sec)
        if self._thread.is_alive():
            self._log(f"notifications not sent within {timeout_sec:g} s")

    def _deliver_all(self) -> None:
        while True:
            try:
                notification = self._queue.get(timeout=TICK_SEC)
            except queue.Empty:
                self._guard("watching the run", self.tick)
                continue
            if notification is None:
                return
            if isinstance(notification, threading.Event):
                notification.set()
                continue
            body = notification.to_bytes()
            for name, deliver in self._receivers.items():
                self._guard(f"{notification.event.value}: {name}", functools.partial(deliver, body))

    def _guard(self, label: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever a receiver does, the run goes on; the line says what it was
            text = " ".join(str(error).split())[:300] or type(error).__name__
            self._log(f"notification not sent: {label}: {text}")
