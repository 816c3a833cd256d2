"""The ledger takes over what a training's pods wrote to the volume."""

import contextlib
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.records import schema
from bench.records.paths import LEDGER_FILE
from bench.records.training import Restart
from remote.cluster.labels import COMPONENT_LABEL, RUN_ANNOTATION, TRAIN
from remote.fleet.ledger import Ledger
from tasks.fleet import k8s_training
from tasks.fleet.k8s_training import _record_restarts, _to_state
from tests.support.reports import synthetic


def restart(attempt: int, since_checkpoint_sec: float | None) -> Restart:
    return Restart(
        attempt=attempt, from_step=5, reason="", lost_steps=0, lost_sec=0.0, since_checkpoint_sec=since_checkpoint_sec
    )


def state(restarts: Any) -> Any:
    return _to_state({"attempts": [], "progress": None, "restarts": restarts})


def test_restarts_of_a_damaged_file_are_unknown() -> None:
    assert state([schema.to_json(restart(2, 30.0))]).restarts == [restart(2, 30.0)]
    assert [state(damaged).restarts for damaged in (None, {}, [1], [{"attempt": 2}], 7)] == [[]] * 5


def test_each_restart_of_a_job_is_recorded_once_with_its_cost(tmp_path: Path) -> None:
    record = synthetic.record(workers=["worker-0"])
    inputs = {"job": {"after": 0}, "forecast": {"usd_per_gpu_hour": 3.6}}
    run = dataclasses.replace(record, provenance={"inputs": inputs})
    planned = run.planned[0]
    ledger = Ledger.create(tmp_path / LEDGER_FILE, [planned.trial_id])
    for attempt in (1, 2, 3):
        ledger.record_start(planned.trial_id, attempt, "worker-0", "/shared")
    for _ in range(2):
        _record_restarts(run, ledger, [restart(2, 50.0), restart(3, None), restart(4, 20.0)])
    resumed = dataclasses.replace(run, provenance={"inputs": {"job": {"after": 2}}})
    _record_restarts(resumed, ledger, [restart(2, 50.0), restart(3, 86_400.0)])
    events = [json.loads(line) for line in (tmp_path / LEDGER_FILE).read_text().splitlines()]
    costs = [(event["attempt"], event["step"], event["usd"]) for event in events if event["event"] == "restarted"]
    assert costs == [(2, 5, 0.05 * planned.trial.world_size)], "attempt 3 first waited for the operator"


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
    monkeypatch.setattr(k8s_training, "component_hosts", lambda *_: ["reader"])
    monkeypatch.setattr(k8s_training, "_probe_error", lambda _: failures.pop(0))
    monkeypatch.setattr(k8s_training, "_POLL_SEC", 0.0)
    with k8s_training._temporary_reader_pod(settings, cluster, synthetic.record()):
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = synthetic.record(workers=["worker-0"])
    metadata = {"annotations": {RUN_ANNOTATION: record.run_id}, "labels": {COMPONENT_LABEL: TRAIN}}
    template = {"metadata": {"labels": {COMPONENT_LABEL: TRAIN}}}
    job = {"kind": "Job", "metadata": metadata, "spec": {"template": template}}
    job["status"] = {"active": 1, "conditions": conditions}
    states: list[Any] = [{"running": {}} if text is None else {"terminated": {"message": text}} for text in messages]
    pods = [{"metadata": metadata, "status": {"containerStatuses": [{"state": state}]}} for state in states]
    cluster = SimpleNamespace(list_fleet_objects=lambda kind: [job] if kind == "Job" else [], pods=lambda: pods)
    monkeypatch.setattr(k8s_training, "open_cluster", lambda _: contextlib.nullcontext(cluster))
    line = k8s_training.describe_end(SimpleNamespace(), record)
    end = f"run {record.run_id}: {expected}; `inv collect --run={record.run_id}` fetches its results"
    assert line == (None if expected is None else end)
