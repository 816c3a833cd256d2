"""The plan of a training: equal with and without a worker at its submission; what it needs of a volume."""

import dataclasses
import json
from collections.abc import Callable

import pytest
from invoke import Context

from bench.records.run import PlannedTrial
from bench.records.training import DerivedSettings
from tasks.cluster.commands import DeployOptions
from tasks.errors import UsageError
from tasks.fleet import trial_spec
from tasks.fleet.plan import new_record
from tasks.fleet.run_store import TRAIN
from tasks.settings.layers import load
from tasks.train import forecast
from tasks.train.submit import NO_VOLUME, job_facts, submit
from tasks.train.train import NO_WORKER, TrainRequest, plan_training
from tests.unit.tasks.train.conftest import MakeSettings
from tests.unit.tasks.train.test_check import make_probe

HOST_JOB = {"shared": "/runs", "turn": 1, "after": 0}


def test_a_plan_does_not_depend_on_whether_a_worker_answered(settings: MakeSettings) -> None:
    trial = trial_spec.make_trial(settings(), 1)
    request = TrainRequest(trial=trial, workers=["worker-0"], hosts=[], job=HOST_JOB, adapter=None)
    unseen = plan_training(request, None)
    probe = make_probe(derived=DerivedSettings(validation_share=0.2, rows_per_step=2, warmup_share=0.067))
    seen = plan_training(request, (probe, forecast.predict(settings(), trial, probe)))
    assert seen.trial.training is not None
    assert seen.trial.training.input_digests
    pinned = dataclasses.replace(seen.trial.training, input_digests={})
    assert dataclasses.replace(seen.trial, training=pinned) == unseen.trial
    assert {"validation_share", "rows_per_step", "warmup_share"} <= set(seen.trial.derive)
    assert unseen.lines == [NO_WORKER]


@pytest.mark.parametrize(
    ("volume", "ranks", "keeps_pod"), [("10.0.0.1:/export", 4, False), ("10.0.0.1:/export", 1, False), (None, 1, True)]
)
def test_one_pod_may_do_without_a_volume_and_waits_for_its_collection(
    volume: str | None, ranks: int, keeps_pod: bool, context: Callable[..., Context]
) -> None:
    sections = {"fleet": {"kind": "pods", "size": 4}, "cluster": {"volume": {"handle": volume}}}
    configured = load(context(text=json.dumps(sections)))
    job = job_facts(configured, "", ranks)
    assert (job["overlay"], job.get("keeps_pod", False)) == (f"job-{ranks}gpu", keeps_pod)
    trial = trial_spec.make_trial(configured, ranks)
    request = TrainRequest(trial=trial, workers=["worker-0"], hosts=[], job=job, adapter=None)
    assert (NO_VOLUME in plan_training(request, None).lines) == keeps_pod


def test_several_pods_without_a_volume_are_refused_with_the_setting(context: Callable[..., Context]) -> None:
    with pytest.raises(UsageError, match=r"^cluster\.volume\.handle"):
        job_facts(load(context(text=json.dumps({"fleet": {"kind": "pods"}}))), "", 2)


def test_settings_too_large_for_an_environment_are_refused_before_the_plan_is_written(settings: MakeSettings) -> None:
    configured = settings(data=[f"shard-{number:0100}.jsonl" for number in range(1100)])
    planned = PlannedTrial(trial_id="train", trial=trial_spec.make_trial(configured, 1), worker="worker-0")
    run = new_record(configured, TRAIN, [planned], ["worker-0"], inputs={"job": HOST_JOB})
    with pytest.raises(UsageError, match=r"^train: .* bytes"):
        submit(configured, run, DeployOptions(), lambda: pytest.fail("written"))
