"""`inv tensorboard`: TensorBoard on a run, also while it goes on.

The event files are written here, from what comes home (`reports.exports.tensorboard`); TensorBoard reads them again
every few seconds. It serves this machine alone.
"""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from invoke.context import Context

from bench.records.paths import LEDGER_FILE
from remote.fleet.ledger import Ledger, LedgerError
from remote.hosts.host import HostError
from reports.exports import tensorboard
from reports.exports.write import export
from reports.read.run import NotWritten, ReportError
from tasks.cli.flags import number
from tasks.cli.signals import interrupted_by
from tasks.errors import RetryableError, TaskFailed, UsageError, one_line, translate_errors
from tasks.fleet.run_store import is_training, open_run
from tasks.reports.partial_steps import PartialSteps
from tasks.settings.load import load
from tasks.settings.sources import shown

EVERY_SEC = 5.0
ADDRESS = "127.0.0.1"
_END_SEC = 10.0


class LiveEvents:
    """A run's event files. `complaint` is why the last look at a worker failed; None where it did not."""

    def __init__(self, folder: Path, so_far: PartialSteps | None) -> None:
        self._folder, self._so_far = folder, so_far
        self._seen: object = None
        self.complaint: str | None = None

    def renew(self) -> bool:
        """Write what has come since the last time; whether the run goes on. Raises ReportError."""
        goes_on, self.complaint = True, None
        try:
            goes_on = self._bring()
        except (HostError, LedgerError, OSError) as error:
            self.complaint = one_line(str(error))
        path = None if self._so_far is None else self._so_far.path
        seen = [_mark(self._folder / LEDGER_FILE), path, None if path is None else _mark(path)]
        if seen != self._seen:
            export(self._folder, [tensorboard.FOLDER], path)
            self._seen = seen
        return goes_on

    def _bring(self) -> bool:
        if self._so_far is not None:
            return self._so_far.fetch_steps()
        return bool(Ledger(self._folder / LEDGER_FILE).open_trials())


def show(context: Context, name: str | None, *, port: str, once: bool) -> None:
    settings = load(context)
    at = int(number("--port", port, "a port, 1 to 65535", lambda given: 1 <= given <= 65535 and given.is_integer()))
    run, folder = open_run(settings, name)
    if not once:
        _check_tensorboard(at)
    live = LiveEvents(folder, PartialSteps(settings, run, folder) if is_training(folder) else None)
    with translate_errors(UsageError, ReportError), translate_errors(RetryableError, NotWritten):
        goes_on = live.renew()
        if live.complaint is not None:
            print(f"! {live.complaint}; shown is what is here")
        where = folder / "report" / tensorboard.FOLDER
        if once:
            print(shown(where))
            return
        _serve(where, at, run.run_id, live, goes_on=goes_on)


def _check_tensorboard(port: int) -> None:
    """Raises UsageError where it is not installed or its port is taken."""
    if find_spec("tensorboard") is None:
        raise UsageError(
            "tensorboard is not installed; `pip install tensorboard`, then the same again, or write its files alone "
            "with --once"
        )
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((ADDRESS, port))
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror}; choose another one: --port {port + 1}") from None


def _serve(where: Path, port: int, run_id: str, live: LiveEvents, *, goes_on: bool) -> None:
    """Until Ctrl-C, or until TensorBoard ends, which is an error."""
    argv = (
        *(sys.executable, "-m", "tensorboard.main", "--logdir", str(where), "--host", ADDRESS, "--port", str(port)),
        *("--reload_interval", f"{EVERY_SEC:g}"),
    )
    with tempfile.TemporaryFile() as said, interrupted_by(signal.SIGTERM):
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            print(f"http://{ADDRESS}:{port}/ shows run {run_id}; Ctrl-C ends it", flush=True)
            while process.poll() is None:
                goes_on = goes_on and live.renew()
                time.sleep(EVERY_SEC)
        except KeyboardInterrupt:
            return  # the usual way to leave
        finally:
            _end(process)
        said.seek(0)
        words = said.read().decode(errors="replace").strip().splitlines()
        raise TaskFailed(f"TensorBoard ended with exit code {process.returncode}: {words[-1] if words else 'no word'}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_SEC)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _mark(path: Path) -> tuple[int, int]:
    """Changes with the file."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
