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
        self._buffer: collections.deque[str] = collections.deque(maxlen=_MAX_BUFFERED_RECORDS)
        self._folder: Path | None = None
        self._descriptor: int | None = None
        self._is_run = False

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record) + "\n"
        if not self._is_run:
            self._buffer.append(line)
        if self._descriptor is None and record.levelno >= logging.INFO and self.fallback_folder is not None:
            self._open(self.fallback_folder)
            self._write("".join(self._buffer))
        else:
            self._write(line)

    def open_run(self, folder: Path) -> None:
        """Write to the log of the run in `folder` from now on, beginning with the records so far."""
        with self.lock or contextlib.nullcontext():
            if self._is_run and self._folder == folder:
                return
            self._open(folder)
            self._write("".join(self._buffer))
            self._is_run = True

    def close(self) -> None:
        self._close_file()
        super().close()

    def _open(self, folder: Path) -> None:
        self._close_file()
        self._folder, path = folder, folder / LOG_FILE
        with contextlib.suppress(OSError):
            if path.stat(follow_symlinks=False).st_size > MAX_LOG_BYTES:
                path.replace(folder / f"{LOG_FILE}.1")
        try:
            if folder == self.fallback_folder:
                folder.mkdir(parents=True, exist_ok=True)
            # O_NONBLOCK: a pipe of this name would wait for a reader.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
        except OSError:
            return  # another user's folder, or a read-only or full disk
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            os.close(descriptor)
            return
        self._descriptor = descriptor

    def _write(self, text: str) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, text.encode(errors="backslashreplace"))

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


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
