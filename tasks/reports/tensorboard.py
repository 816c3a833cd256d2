"""`inv tensorboard`: run TensorBoard on a run, also on a running one.

The event files are written locally from fetched results (`reports.exports.trackers`); TensorBoard reloads them
every few seconds. It listens only on the loopback address.
"""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cached_property
from pathlib import Path

from invoke.context import Context

from bench.records.paths import LEDGER_FILE, REPORT_FOLDER, STEPS_FILE, TRAINING_FILE, TRIALS_FOLDER
from bench.records.run import RunRecord
from remote.fleet.ledger import Ledger, LedgerError
from remote.hosts.host_protocol import Host, HostError
from remote.jobs.job import Agent
from remote.jobs.transfer import pull
from reports.exports import check_packages, export
from reports.exports.trackers import TENSORBOARD
from reports.read.loaded_run import ReportError, ReportWriteError
from tasks.cli.signals import as_ctrl_c
from tasks.errors import RetryableError, TaskFailed, UsageError, escape_controls, translate_errors
from tasks.fleet.run_store import is_training, open_run
from tasks.fleet.training_job import open_job, read_state, run_folder
from tasks.settings.layers import Settings, load
from tasks.settings.sources import display_path

PARTIAL_FOLDER = "so-far"  # in the run's folder, with a subfolder per attempt
_PULL_TIMEOUT_SEC = 60.0


class PartialSteps:
    """Local copy of a running training's steps."""

    def __init__(self, settings: Settings, run: RunRecord, folder: Path) -> None:
        self._settings, self._run, self._folder = settings, run, folder
        self._trial_id = run.planned[0].trial_id

    @property
    def path(self) -> Path | None:
        """Local steps.jsonl of the newest attempt; None before the first fetch and after `inv collect`."""
        partial_files = (self._folder / PARTIAL_FOLDER).glob(f"*/{STEPS_FILE}")
        return max(partial_files, key=lambda path: int(path.parent.name), default=None)

    def fetch_steps(self) -> bool:
        """Update the copy; return whether the training is running. Raises HostError, LedgerError and OSError."""
        entry = Ledger(self._folder / LEDGER_FILE).entries.get(self._trial_id)
        if entry is None:
            return False
        is_running = entry.status is None
        if not is_running and (self._folder / TRIALS_FOLDER / self._trial_id / TRAINING_FILE).exists():
            shutil.rmtree(self._folder / PARTIAL_FOLDER, ignore_errors=True)
            return False
        if is_running and (attempts := read_state(self._run, self._host).attempts):
            self._fetch(f"{run_folder(self._run)}/{self._trial_id}.{attempts[-1].number}", attempts[-1].number)
        return is_running

    def _fetch(self, source: str, attempt: int) -> None:
        target = self._folder / PARTIAL_FOLDER / str(attempt)
        target.mkdir(parents=True, exist_ok=True)
        pull(Agent(self._host), source, target, only=(STEPS_FILE,), timeout_sec=_PULL_TIMEOUT_SEC)

    @cached_property
    def _host(self) -> Host:
        with open_job(self._settings, self._run) as job:
            return job.hosts[0]


POLL_INTERVAL_SEC = 5.0
ADDRESS = "127.0.0.1"
_STOP_TIMEOUT_SEC = 10.0


class LiveEvents:
    """Event files of a run. `error` is the reason why the last fetch from a worker failed, or None."""

    def __init__(self, folder: Path, partial_steps: PartialSteps | None) -> None:
        self._folder, self._partial_steps = folder, partial_steps
        self._exported: object = None
        self.error: str | None = None

    def update(self) -> bool:
        """Fetch and export new results; return whether the run is running. Raises ReportError."""
        is_running, self.error = True, None
        try:
            is_running = self._fetch()
        except (HostError, LedgerError, OSError) as error:
            self.error = escape_controls(str(error))
        path = None if self._partial_steps is None else self._partial_steps.path
        versions = [_file_version(self._folder / LEDGER_FILE), path, None if path is None else _file_version(path)]
        if versions != self._exported:
            export(self._folder, [TENSORBOARD], path)
            self._exported = versions
        return is_running

    def _fetch(self) -> bool:
        if self._partial_steps is not None:
            return self._partial_steps.fetch_steps()
        return bool(Ledger(self._folder / LEDGER_FILE).open_trials())


def serve_run(context: Context, name: str | None, *, port: int, once: bool) -> None:
    settings = load(context)
    run, folder = open_run(settings, name)
    with translate_errors(UsageError, ReportError):
        check_packages([TENSORBOARD])
    if not once:
        _check_port(port)
    events_folder = folder / REPORT_FOLDER / TENSORBOARD
    live = LiveEvents(folder, PartialSteps(settings, run, folder) if is_training(folder) else None)
    with translate_errors(UsageError, ReportError), translate_errors(RetryableError, ReportWriteError):
        is_running = live.update()
        if live.error is not None:
            print(f"! {live.error}; showing the local results")
        if once:
            print(display_path(events_folder))
        else:
            _serve(events_folder, port, run.run_id, live, is_running=is_running)


def _check_port(port: int) -> None:
    """Raise UsageError if the port is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror}", remedy=f"choose another: --port {port + 1}") from error


def _serve(events_folder: Path, port: int, run_id: str, live: LiveEvents, *, is_running: bool) -> None:
    """Run TensorBoard until Ctrl-C. Raises TaskFailed if it ends before."""
    argv = (
        *(sys.executable, "-m", "tensorboard.main", "--logdir", str(events_folder)),
        *("--host", ADDRESS, "--port", str(port), "--reload_interval", f"{POLL_INTERVAL_SEC:g}"),
    )
    with tempfile.TemporaryFile() as output, as_ctrl_c(signal.SIGTERM):
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            print(f"http://{ADDRESS}:{port}/ shows run {run_id}; Ctrl-C ends it", flush=True)
            while process.poll() is None:
                is_running = is_running and live.update()
                time.sleep(POLL_INTERVAL_SEC)
        except KeyboardInterrupt:
            return  # the normal end
        finally:
            _stop(process)
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
        raise TaskFailed(
            f"TensorBoard ended with exit code {process.returncode}: {lines[-1] if lines else 'no output'}"
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_SEC)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _file_version(path: Path) -> tuple[int, int]:
    """Return size and modification time, which change with the file."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
