"""The program of notify.command gets the end of a run once, and never changes it."""

import json
from pathlib import Path

import pytest

from bench.records.paths import LEDGER_FILE
from bench.records.run import RunRecord
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.ledger import Ledger
from tasks.errors import UsageError
from tasks.fleet import notify
from tasks.settings.layers import Settings
from tasks.settings.sections import NotifySection
from tests.support.reports import synthetic


class Run:
    """A run of two trials whose program appends its standard input to a file, then runs `script`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sent = folder / "r", folder / "sent"
        self.record: RunRecord = synthetic.write_run(self.folder, synthetic.record(run_id="r", workers=1))
        self.trials = [planned.trial_id for planned in self.record.planned]
        self.ledger = Ledger.create(self.folder / LEDGER_FILE, self.trials)

    def end(self, *outcomes: Outcome, script: str = "") -> None:
        command = ["sh", "-c", f'cat >> "$1"; {script}', "sh", str(self.sent)]
        with notify.notify_end(command, self.record, self.folder, self.ledger):
            for trial_id, outcome in zip(self.ledger.open_trials(), outcomes, strict=False):
                self.ledger.record_end(trial_id, outcome, None)

    def documents(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.sent.read_text().splitlines()] if self.sent.exists() else []


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


SUCCESS, LOSS = Outcome(TrialStatus.SUCCEEDED), Outcome.of(ReasonCode.WORKER_LOST, "no contact\x1b[2J")


def test_the_end_of_a_run_is_notified_once(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.end(SUCCESS)
    assert run.documents() == [], "a trial is open"
    run.end(SUCCESS)
    run.end()
    (document,) = run.documents()
    assert (document["run"], document["kind"], document["folder"]) == ("r", run.record.suite, str(run.folder))
    assert (document["status"], document["statuses"], document["reason"]) == ("SUCCEEDED", {"SUCCEEDED": 2}, None)
    assert document["created_at"] == run.record.created_at
    assert str(document["ended_at"]).endswith("+00:00")
    assert capsys.readouterr().out == ""


def test_the_cause_of_the_first_failure_and_its_remedy_are_in_it_and_a_resumed_run_ends_again(run: Run) -> None:
    run.end(LOSS, SUCCESS)
    run.ledger.reopen(run.trials[0])
    run.end(SUCCESS)
    first, second = run.documents()
    assert (first["status"], first["reason_code"], first["reason"]) == ("LOST", "worker_lost", LOSS.text)
    assert "--resume" in str(first["remedy"])
    assert first["statuses"] == {"SUCCEEDED": 1, "LOST": 1}
    assert second["status"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("script", "named"),
    [("echo odd >&2; exit 3", "exit code 3: odd"), ("sleep 60", "sh"), ("kill -9 $$", "exit code 137")],
)
def test_a_program_that_fails_or_hangs_is_one_line(
    script: str, named: str, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "TIMEOUT_SEC", 1.0)
    run.end(SUCCESS, SUCCESS, script=script)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("! notify.command: ")
    assert named in line
    assert run.ledger.open_trials() == []


def test_an_interrupted_command_notifies_only_of_a_run_that_has_ended(run: Run) -> None:
    with pytest.raises(KeyboardInterrupt), notify.notify_end(["false"], run.record, run.folder, run.ledger):
        raise KeyboardInterrupt
    assert run.documents() == []


def test_a_program_that_does_not_exist_is_refused_by_its_setting(tmp_path: Path) -> None:
    program = tmp_path / "notify"
    settings = Settings(root=tmp_path, notify=NotifySection(command=[str(program)]))
    with pytest.raises(UsageError, match=r"^notify\.command: .*/notify: no such program"):
        notify.check_command(settings)
    program.touch(mode=0o755)
    notify.check_command(settings)
