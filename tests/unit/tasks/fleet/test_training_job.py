"""The ledger takes over what a training wrote to its folder; the end of its pods."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.records import schema
from bench.records.paths import LEDGER_FILE
from bench.records.status import Outcome, ReasonCode
from bench.records.training import Restart
from remote.cluster.labels import COMPONENT_LABEL, RUN_ANNOTATION, TRAIN
from remote.fleet.ledger import Ledger
from tasks.fleet import training_pods
from tasks.fleet.training_job import AttemptFiles, TrainingState, import_attempts, parse_state
from tasks.fleet.training_pods import PodsJob
from tests.support.reports import synthetic


def restart(attempt: int, since_checkpoint_sec: float | None) -> Restart:
    return Restart(attempt=attempt, from_step=5, since_checkpoint_sec=since_checkpoint_sec)


def state(restarts: Any) -> Any:
    return parse_state({"attempts": [], "progress": None, "restarts": restarts, "has_ended": False})


def test_restarts_of_a_damaged_file_are_unknown() -> None:
    assert state([schema.to_json(restart(2, 30.0))]).restarts == [restart(2, 30.0)]
    assert [state(damaged).restarts for damaged in (None, {}, [1], [{"attempt": 2}], 7)] == [[]] * 5


def test_each_attempt_is_recorded_once_with_its_cause_and_each_restart_with_its_cost(tmp_path: Path) -> None:
    record = synthetic.record(workers=["worker-0"])
    inputs = {"job": {"after": 0, "shared": "/s"}, "forecast": {"usd_per_gpu_hour": 3.6}}
    run = dataclasses.replace(record, planned=record.planned[:1], provenance={"inputs": inputs})
    planned = run.planned[0]
    ledger = Ledger.create(tmp_path / LEDGER_FILE, [planned.trial_id])
    killed = Outcome.of(ReasonCode.KILLED, "killed by SIGKILL")
    attempts = [
        AttemptFiles(number=1, first=0.0, last=1.0, loss=killed),
        AttemptFiles(number=2, first=2.0, last=3.0),  # its pod died before it could say why
        AttemptFiles(number=3, first=4.0, last=5.0),
    ]
    for _ in range(2):
        restarts = [restart(2, 50.0), restart(3, None), restart(4, 20.0)]
        import_attempts(run, ledger, TrainingState(attempts=attempts, restarts=restarts))
    resumed = dataclasses.replace(run, provenance={"inputs": {"job": {"after": 2, "shared": "/s"}}})
    restarts = [restart(2, 50.0), restart(3, 86_400.0)]
    import_attempts(resumed, ledger, TrainingState(attempts=attempts, restarts=restarts))
    events = [json.loads(line) for line in (tmp_path / LEDGER_FILE).read_text().splitlines()]
    costs = [(event["attempt"], event["step"], event["usd"]) for event in events if event["event"] == "restarted"]
    assert costs == [(2, 5, 0.05 * planned.trial.world_size)], "attempt 3 first waited for the operator"
    causes = [(event["attempt"], event["reason_code"]) for event in events if event["event"] == "retried"]
    assert causes == [(1, "killed"), (2, "worker_lost")]


def test_a_reader_that_another_command_has_deleted_is_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    volumes = [{"persistentVolumeClaim": {"claimName": "shared"}}]
    spec = {"template": {"spec": {"volumes": volumes, "containers": [{}]}}}
    job, applied, failures = (
        {"kind": "Job", "metadata": {"namespace": "n"}, "spec": spec},
        [],
        ["no pod", "no pod", None],
    )
    cluster: Any = SimpleNamespace(
        list_fleet_objects=lambda kind: [job] if kind == "Job" else [],
        apply=applied.append,
        has_object=lambda *_: len(applied) > 1,
        delete=lambda *_, **__: None,
    )
    settings: Any = SimpleNamespace(cluster=SimpleNamespace(ready_timeout_sec=60.0))
    monkeypatch.setattr(training_pods, "component_hosts", lambda *_: ["reader"])
    monkeypatch.setattr(training_pods, "_probe_error", lambda _: failures.pop(0))
    monkeypatch.setattr(training_pods, "_POLL_SEC", 0.0)
    with training_pods._temporary_reader(settings, cluster, synthetic.record()):
        assert len(applied) == 2


@pytest.mark.parametrize(
    ("messages", "conditions", "expected"),
    [
        ([None, None], [], None),
        ([None, "FAILED: loss is not finite"], [], "FAILED: loss is not finite"),  # another pod waits for a node
        (["SUCCEEDED: trained"], [{"type": "Complete", "status": "True"}], "SUCCEEDED: trained"),
        ([], [{"type": "Complete", "status": "True"}], "its pods are gone"),
    ],
)
def test_the_end_of_a_training_is_what_its_pods_say_and_not_the_status_of_its_job(
    messages: list[str | None],
    conditions: list[dict[str, str]],
    expected: str | None,
) -> None:
    record = synthetic.record(workers=["worker-0"])
    metadata = {"annotations": {RUN_ANNOTATION: record.run_id}, "labels": {COMPONENT_LABEL: TRAIN}}
    template = {"metadata": {"labels": {COMPONENT_LABEL: TRAIN}}}
    job = {"kind": "Job", "metadata": metadata, "spec": {"template": template}}
    job["status"] = {"active": 1, "conditions": conditions}
    states: list[Any] = [{"running": {}} if text is None else {"terminated": {"message": text}} for text in messages]
    pods = [{"metadata": metadata, "status": {"containerStatuses": [{"state": state}]}} for state in states]
    cluster: Any = SimpleNamespace(list_fleet_objects=lambda kind: [job] if kind == "Job" else [], pods=lambda: pods)
    end = PodsJob(SimpleNamespace(), record, cluster).end()  # type: ignore[arg-type] # no setting is read
    assert (None if end is None else end.text) == expected
