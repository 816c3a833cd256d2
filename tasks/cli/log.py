"""Log of a command: `operator.log` in the run's folder, and standard error with `--debug`.

Every module logs to `logging.getLogger(__name__)`. Records of level DEBUG and above go to the log of the run that the
command opens. A command without a run, such as `inv build`, writes to the results folder as soon as something of level
INFO happens, so that a command that only reads writes nothing. Secrets are masked and terminal controls are escaped,
also in tracebacks. A log that cannot be written never fails the command.
"""

import collections
import contextlib
import logging
import os
import shlex
import stat
import sys
import threading
import time
from pathlib import Path

from bench.records.version import VERSION
from remote.hosts.command import mask_known
from reports.formatting import escape_text

DISTRIBUTION = "qlora-fleet"
LOG_FILE = "operator.log"
PACKAGES = ("bench", "remote", "reports", "tasks")
DEBUG_VARIABLE = "QLORA_FLEET_DEBUG"
MAX_LOG_BYTES = 5 << 20  # an older log is renamed to operator.log.1 when the next command opens it
_MAX_BUFFERED_RECORDS = 1000
_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(process)d %(name)s [%(threadName)s] %(message)s"

_logger = logging.getLogger(__name__)


class SafeFormatter(logging.Formatter):
    """Formatter that masks secrets and escapes terminal controls. The lines after a record's first are indented."""

    converter = time.gmtime  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(_FORMAT, "%Y-%m-%dT%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return escape_text(mask_known(super().format(record))).replace("\n", "\n    ")


class OperatorLog(logging.Handler):
    """Handler that writes to `operator.log`. Until a run's log is open, it keeps the newest records for it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(SafeFormatter())
        self.fallback_folder: Path | None = None
        self._run: Path | None = None
        self._buffer: collections.deque[str] = collections.deque(maxlen=_MAX_BUFFERED_RECORDS)
        self._has_fallback = False

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record) + "\n"
        folder = self._run or self.fallback_folder
        if self._run is None:
            self._buffer.append(text)
            if not self._has_fallback and record.levelno >= logging.INFO and folder is not None:
                self._has_fallback, text = True, "".join(self._buffer)
                with contextlib.suppress(OSError):
                    folder.mkdir(parents=True, exist_ok=True)
                _rename_large_log(folder)
        if folder is not None and (self._run or self._has_fallback):
            _append(folder, text)

    def open_run(self, folder: Path) -> None:
        """Write to the log of the run in `folder` from now on, beginning with the records so far."""
        with self.lock or contextlib.nullcontext():
            if self._run != folder:
                self._run = folder
                _rename_large_log(folder)
                _append(folder, "".join(self._buffer))


def _rename_large_log(folder: Path) -> None:
    path = folder / LOG_FILE
    with contextlib.suppress(OSError):
        if path.stat(follow_symlinks=False).st_size > MAX_LOG_BYTES:
            path.replace(folder / f"{LOG_FILE}.1")


def _append(folder: Path, text: str) -> None:
    """Append to the log in a folder, if it is a file of this user; on a full disk or without permission, do nothing."""
    # O_NONBLOCK: a pipe of this name would wait for a reader.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / LOG_FILE, flags, 0o600)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                os.write(descriptor, text.encode(errors="backslashreplace"))
        finally:
            os.close(descriptor)


class _DebugHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that writes to the standard error of the moment, which a live view replaces."""

    def __init__(self) -> None:
        logging.Handler.__init__(self, logging.DEBUG)
        self.setFormatter(SafeFormatter())

    @property
    def stream(self) -> object:
        return sys.stderr


_operator_log: OperatorLog | None = None


def start_log() -> None:
    """Begin to log this process's command. Called once, before anything else logs."""
    global _operator_log
    _operator_log = OperatorLog()
    for name in PACKAGES:
        package = logging.getLogger(name)
        package.setLevel(logging.DEBUG)
        package.propagate = False  # Invoke's own debugging sets the root logger up, with an unmasked format
        package.handlers = [_operator_log]
    if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        print_debug()
    threading.excepthook = _log_thread_exception


def print_debug() -> None:
    """Also print the log on standard error, from now on."""
    handlers = logging.getLogger(PACKAGES[0]).handlers
    if not any(isinstance(handler, _DebugHandler) for handler in handlers):
        debug = _DebugHandler()
        for name in PACKAGES:
            logging.getLogger(name).addHandler(debug)


def log_command(task: str, results_folder: Path) -> None:
    """Log the start of a task, and set the folder for the log of a task without a run. Without effect outside `inv`."""
    if _operator_log is not None:
        _operator_log.fallback_folder = results_folder
        _logger.debug(
            "task %s of `inv %s`, %s %s, Python %s, %s %s",
            *(task, shlex.join(sys.argv[1:]), DISTRIBUTION, VERSION),
            *(sys.version.partition(" ")[0], sys.platform, os.uname().release),
        )


def open_run_log(folder: Path) -> None:
    """Log to `operator.log` in this run's folder from now on. Without effect outside `inv`."""
    if _operator_log is not None:
        _operator_log.open_run(folder)


def _log_thread_exception(arguments: threading.ExceptHookArgs) -> None:
    error = arguments.exc_value
    _logger.error("thread ended by an exception", exc_info=error)
    threading.__excepthook__(arguments)
