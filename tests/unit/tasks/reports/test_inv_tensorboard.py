"""`inv tensorboard`: its event files during a run, and its messages. tests/system/train has a real training."""

import contextlib
import json
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from invoke.context import Context

from bench.records.paths import LEDGER_FILE
from bench.records.status import Outcome, TrialStatus
from remote.fleet.ledger import Ledger
from remote.hosts.connectors import CONNECTORS
from remote.hosts.host_protocol import HostError
from reports.exports.log_model import read_logged_runs
from tasks.commands import tensorboard
from tasks.errors import TaskFailed, UsageError
from tasks.fleet.training_job import AttemptFiles, TrainingState
from tasks.reports import tensorboard as live
from tests.support.reports import synthetic, training_run

ROW = {"learning_rate": 0.1, "gradient_norm": 1.0, "targets": 5, "tokens": 9, "samples": 1, "step_time_sec": 2.0}


@pytest.fixture
def results(tmp_path, monkeypatch):
    settings = SimpleNamespace(
        root=tmp_path,
        results_folder=tmp_path / "results",
        connector=CONNECTORS["local"],
        fleet=SimpleNamespace(kind="local"),
    )
    monkeypatch.setattr(live, "load", lambda _: settings)
    monkeypatch.setattr("reports.exports.find_spec", lambda _: object())
    monkeypatch.setattr(live, "export", write_step_counts)
    monkeypatch.setattr(live, "POLL_INTERVAL_SEC", 0.0)
    monkeypatch.chdir(tmp_path)
    return settings.results_folder


@pytest.fixture
def training(results, monkeypatch):
    """Create a running training; `measure(n)` lets it finish its first n steps."""
    folder = training_run.write_run(results / "r")
    (folder / "trials" / "train" / "training.json").unlink()
    (folder / LEDGER_FILE).unlink()
    Ledger.create(folder / LEDGER_FILE, ["train"]).record_start("train", 1, "worker-0", "/jobs/train.1", 2)
    (results / "latest").symlink_to("r")
    done = []

    def pull(agent, root, target, *, only, **_):
        assert (agent.host.name, root, only) == ("worker-0", "/runs/r/train.2", ("steps.jsonl",))
        (target / "steps.jsonl").write_text(
            "".join(json.dumps({"step": n, "loss": 1.0 / n, **ROW}) + "\n" for n in done)
        )

    job = SimpleNamespace(hosts=[SimpleNamespace(name="worker-0", workdir="/w")])
    state = TrainingState(attempts=[AttemptFiles(number=number, first=0.0, last=1.0) for number in (1, 2)])
    monkeypatch.setattr(live, "open_job", lambda *_: contextlib.nullcontext(job))
    monkeypatch.setattr(live, "read_state", lambda *_: state)
    monkeypatch.setattr(live, "pull", pull)
    return SimpleNamespace(folder=folder, measure=lambda count: done.extend(range(len(done) + 1, count + 1)))


class TensorBoard:
    """Fake TensorBoard process: counts the steps in its files at each poll, and ends after `polls`."""

    def __init__(self, polls, on_poll=lambda _: None, stderr=b""):
        self.polls, self.on_poll, self.stderr, self.counts = polls, on_poll, stderr, []

    def __call__(self, command, *, stdout, **_):
        self.folder = command[command.index("--logdir") + 1]
        stdout.write(self.stderr)
        self.returncode = None
        return self

    def poll(self):
        self.counts.append(count_steps(self.folder))
        self.on_poll(len(self.counts))
        self.returncode = 1 if len(self.counts) == self.polls else None
        return self.returncode

    def terminate(self):
        pass

    def wait(self, _timeout=None):
        pass


def write_step_counts(folder, formats, partial_steps):
    """Write what `count_steps` reads instead of events, so that these tests need no TensorBoard."""
    assert formats == ["tensorboard"]
    for run in read_logged_runs(folder, partial_steps):
        path = folder / "report" / "tensorboard" / run.name / "events"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"train/loss " * sum(point.phase == "train" for point in run.points))


def count_steps(folder):
    return sum(path.read_bytes().count(b"train/loss") for path in Path(folder).glob("*/*"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_a_running_training_is_shown_step_by_step(training, monkeypatch, capsys):
    training.measure(2)
    process = TensorBoard(4, lambda polls: training.measure(2 + polls))
    monkeypatch.setattr(subprocess, "Popen", process)
    port = free_port()
    with pytest.raises(TaskFailed):
        tensorboard(Context(), port=port)
    assert process.counts == [2, 3, 4, 5]
    assert capsys.readouterr().out == f"http://127.0.0.1:{port}/ shows run r; Ctrl-C ends it\n"


def test_after_collection_the_training_s_own_record_is_shown(training, capsys):
    training.measure(1)
    tensorboard(Context(), once=True)
    Ledger(training.folder / LEDGER_FILE).record_end("train", Outcome(TrialStatus.SUCCEEDED), 1)
    training_run.RECORD.write(training.folder / "trials" / "train")
    tensorboard(Context(), once=True)
    assert count_steps(training.folder / "report" / "tensorboard") == 2
    assert not (training.folder / "so-far").exists()
    assert capsys.readouterr().out == "results/r/report/tensorboard\n" * 2


def test_an_unreachable_worker_leaves_the_local_results(training, monkeypatch, capsys):
    training.measure(2)
    tensorboard(Context(), once=True)

    def gone(*_, **__):
        raise HostError("worker-0: no route to host")

    monkeypatch.setattr(live, "pull", gone)
    tensorboard(Context(), once=True)
    assert "! worker-0: no route to host; " in capsys.readouterr().out
    assert count_steps(training.folder / "report" / "tensorboard") == 2


def test_a_benchmark_s_trials_are_shown_as_they_arrive(results, monkeypatch):
    folder, run = results / synthetic.RUN_ID, synthetic.record(workers=1)
    folder.mkdir(parents=True)
    run.write(folder)
    (results / "latest").symlink_to(synthetic.RUN_ID)
    ledger = Ledger.create(folder / LEDGER_FILE, [plan.trial_id for plan in run.planned])

    def add_result(polls):
        if polls <= 2:
            plan = run.planned[polls - 1]
            synthetic.write_result(folder, synthetic.result(plan, run_id=run.run_id))
            ledger.record_start(plan.trial_id, 1, "worker-1", "/jobs")
            ledger.record_end(plan.trial_id, Outcome(TrialStatus.SUCCEEDED), 1)

    process = TensorBoard(4, add_result)
    monkeypatch.setattr(subprocess, "Popen", process)
    with pytest.raises(TaskFailed):
        tensorboard(Context(), port=free_port())
    assert process.counts == [0, 15, 30, 30]


@pytest.mark.usefixtures("training")
def test_without_tensorboard_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("reports.exports.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"; `pip install tensorboard`"):
        tensorboard(Context())


@pytest.mark.usefixtures("training")
def test_a_port_in_use_is_reported_with_another():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=rf"--port {port}: Address already in use; .*--port {port + 1}"):
            tensorboard(Context(), port=str(port))


@pytest.mark.usefixtures("training")
@pytest.mark.parametrize("port", ["0", "65536", "x", "80.5"])
def test_an_invalid_port_is_refused(port):
    with pytest.raises(UsageError, match="--port: "):
        tensorboard(Context(), port=port)


@pytest.mark.usefixtures("training")
def test_when_tensorboard_ends_its_last_output_is_reported(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", TensorBoard(1, stderr=b"Traceback\nImportError: numpy\n"))
    with pytest.raises(TaskFailed, match=r"\b1: ImportError: numpy$"):
        tensorboard(Context(), port=free_port())
