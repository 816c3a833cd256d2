"""Tests of the cluster's tasks without a cluster: pending results, the end of the wait for pods."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from invoke import Context

from bench.records import Trial
from bench.records.atomic_files import sha256_of
from bench.records.paths import LEDGER_FILE, SUMS_FILE
from bench.records.run import PlannedTrial
from bench.records.status import Outcome, TrialStatus
from remote.cluster.diagnosis.finding import Diagnosis
from remote.cluster.diagnosis.nodes import NodeReport
from remote.cluster.kubeconfig import Target
from remote.cluster.labels import RUN_ANNOTATION
from remote.cluster.namespace_client import Cluster
from remote.cluster.plan import Action, ClusterPlan, Verb
from remote.cluster.settings import ClusterSection
from remote.fleet.ledger import Ledger
from remote.hosts.pods.host import PodsSection
from remote.providers import GENERIC
from tasks.clients.target_cluster import place_pods
from tasks.cluster.checks import ResultsGuard
from tasks.cluster.node_list import check_gpu_products, shortage_message
from tasks.cluster.pod_status import WaitPolicy
from tasks.errors import ConfirmationRequired, UsageError
from tasks.fleet.pending_results import (
    discard,
    has_training_ended,
    pending_runs,
)
from tasks.settings.layers import load
from tests.support.reports import synthetic

Make = Callable[..., Context]
MakeRun = Callable[..., tuple[Path, Ledger]]
DEV = {"context": "dev", "server": "https://dev:6443", "namespace": "qlora-fleet"}
TARGET = Target(cluster="c", user="u", **DEV)


@pytest.fixture
def run(tmp_path: Path, make_trial: Callable[..., Trial]) -> MakeRun:
    """Return a function that makes a planned run of one trial over pods, with changed fields."""

    def make(run_id: str = "r1", **changes: Any) -> tuple[Path, Ledger]:
        planned = PlannedTrial(trial_id="small", trial=make_trial(), worker="worker-0")
        provenance = {"cluster": {**DEV, "context": "old"}}
        fields = {"run_id": run_id, "planned": [planned], "fleet_kind": "pods", "provenance": provenance}
        folder = tmp_path / run_id
        folder.mkdir()
        synthetic.record(**(fields | changes)).write(folder)
        return folder, Ledger.create(folder / LEDGER_FILE, ["small"])

    return make


def end_trial(ledger: Ledger, status: TrialStatus = TrialStatus.SUCCEEDED, *, attempt: int = 1) -> None:
    ledger.record_start("small", attempt, "worker-0", "/scratch/x")
    ledger.record_end("small", Outcome(status), attempt)


def write_sums(folder: Path, name: str) -> None:
    """Write the checksums of `inv collect`, of the ledger and one more file."""
    (folder / SUMS_FILE).write_text(f"{sha256_of(folder / LEDGER_FILE)}  {LEDGER_FILE}\n{'0' * 64}  {name}\n")


def pending_lines(results: Path) -> list[str]:
    return list(pending_runs(results, TARGET).values())


def test_a_run_that_ended_is_collected_once_its_sums_name_every_trial(tmp_path: Path, run: MakeRun) -> None:
    folder, ledger = run()
    end_trial(ledger)
    (line,) = pending_lines(tmp_path)
    assert line.startswith("run r1: ")
    assert "never collected" in line
    assert "`inv collect --run=r1`" in line
    write_sums(folder, "run.json")
    assert "1 of 1 trials" in pending_lines(tmp_path)[0]
    write_sums(folder, "trials/small/result.json")
    assert pending_lines(tmp_path) == []


@pytest.mark.parametrize(
    ("settings", "is_shared"),
    [
        ({"cluster": {"volume": {"handle": "fs:10.0.0.1:/export"}}}, True),
        ({"fleet": {"pods": {"shared": "/shared-data"}}}, True),
        ({"cluster": {"volume": {"handle": None}}, "fleet": {"pods": {"shared": None}}}, False),
        ({}, False),
    ],
)
def test_an_ended_run_on_a_volume_that_stays_does_not_keep_its_pods(
    settings: dict[str, Any], is_shared: bool, tmp_path: Path, run: MakeRun
) -> None:
    _, ledger = run(settings=settings)
    assert len(pending_runs(tmp_path, TARGET, is_volume_kept=True)) == 1  # it still runs
    end_trial(ledger)
    assert len(pending_runs(tmp_path, TARGET, is_volume_kept=True)) == (not is_shared)
    assert len(pending_runs(tmp_path, TARGET)) == 1


def test_a_run_that_went_on_after_it_was_collected_is_not_collected(tmp_path: Path, run: MakeRun) -> None:
    folder, ledger = run()
    end_trial(ledger, TrialStatus.CANCELLED)
    write_sums(folder, "trials/small/result.json")
    assert pending_lines(tmp_path) == []
    ledger.reopen("small")
    end_trial(ledger, attempt=2)
    (line,) = pending_lines(tmp_path)
    assert line.startswith("run r1: ")
    assert "after it was collected" in line
    assert "`inv collect --run=r1`" in line


@pytest.mark.parametrize(
    ("changes", "is_pending"),
    [
        ({}, True),
        ({"created_at": "1990-01-01T00:00:00+00:00"}, True),  # with a wrong clock of this machine, too
        # never in these pods
        ({"fleet_kind": "local"}, False),
        ({"provenance": {"cluster": {**DEV, "namespace": "other"}}}, False),
        ({"provenance": {"cluster": {**DEV, "server": "https://prod:6443"}}}, False),
        ({"provenance": {}}, False),
    ],
)
def test_a_run_that_has_not_ended_is_not_collected_unless_it_never_was_in_these_pods(
    changes: dict[str, Any], is_pending: bool, tmp_path: Path, run: MakeRun
) -> None:
    run(**changes)
    lines = pending_lines(tmp_path)
    assert len(lines) == is_pending
    assert all(line.startswith("run r1: 1 of 1 ") and "`inv bench --resume=r1`" in line for line in lines)


def test_results_that_are_only_in_the_pods_stop_a_plan_that_ends_them(tmp_path: Path, run: MakeRun) -> None:
    run()
    live = {"kind": "Job", "metadata": {"name": "bench"}}
    ending = ClusterPlan(actions=(Action(verb=Verb.DELETE, kind="Job", name="bench", live=live),))
    cluster = cast("Cluster", SimpleNamespace(target=TARGET))
    careful, careless = (ResultsGuard(cluster, tmp_path, PodsSection(), discards=flag) for flag in (False, True))
    with pytest.raises(ConfirmationRequired, match=r"^job/bench .*run r1: 1 of 1 .*`inv bench --resume=r1`"):
        careful.check(ending)
    assert "run r1" in str(careful.print_refusal(ending))
    lost = careless.check(ending)
    careless.record_discarded(lost)
    assert [folder.name for folder in lost] == ["r1"]
    assert careful.check(ClusterPlan(actions=())) == {}


def test_a_damaged_run_is_pending_and_a_discarded_one_is_not(
    tmp_path: Path, run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run()
    discard(pending_runs(tmp_path, TARGET))
    assert capsys.readouterr().out.startswith("discarded: run r1: 1 of 1 ")
    assert pending_lines(tmp_path) == []
    folder, _ = run("r2")
    (folder / "run.json").write_text("{}")
    (line,) = pending_lines(tmp_path)
    assert line.startswith(f"{folder.name}: ")


def test_a_training_whose_end_was_read_does_not_keep_its_job(tmp_path: Path, run: MakeRun) -> None:
    """Its Job runs on while one of its pods waits for a node."""
    _, ledger = run("train")
    job = {"metadata": {"annotations": {RUN_ANNOTATION: "train"}}}
    assert not has_training_ended(tmp_path, job)
    end_trial(ledger, TrialStatus.LOST)
    assert has_training_ended(tmp_path, job)
    for other in ({}, {"annotations": {RUN_ANNOTATION: "of another machine"}}):
        assert not has_training_ended(tmp_path, {"metadata": other})


def finding(cause: str = "no-gpu", patience_sec: float | None = 60.0) -> Diagnosis:
    return Diagnosis(subject="pod p", cause=cause, reason="r", remedy="d", patience_sec=patience_sec)


SHORT_PATIENCE, NO_LIMIT = finding("invalid-name", 15.0), finding(patience_sec=None)


@pytest.mark.parametrize(
    ("polls", "expired"),
    [
        ([(100.0, [finding()]), (159.9, [finding()]), (160.0, [finding()])], [None, None, finding()]),
        ([(0.0, [finding()]), (50.0, []), (100.0, [finding()])], [None, None, None]),
        ([(0.0, [NO_LIMIT]), (1e6, [NO_LIMIT])], [None, None]),
        ([(0.0, [finding(), SHORT_PATIENCE]), (20.0, [finding(), SHORT_PATIENCE])], [None, SHORT_PATIENCE]),
    ],
    ids=["outlasts its patience", "starts again after a pause", "has no limit", "the expired one of several is named"],
)
def test_a_finding_ends_the_wait_when_it_outlasts_its_patience(
    polls: list[tuple[float, list[Diagnosis]]], expired: list[Diagnosis | None]
) -> None:
    policy = WaitPolicy()
    assert [policy.expired_finding(findings, now) for now, findings in polls] == expired


def test_a_login_that_was_rejected_before_the_new_secret_may_last_until_the_kubelet_retries() -> None:
    policy = WaitPolicy(login_sec=330.0)
    both = [finding("unauthorized", 10.0), finding("not-found", 340.0)]
    policy.expired_finding(both, 0.0)
    assert policy.expired_finding(both, 329.9) is None
    assert policy.expired_finding(both, 330.0) == both[0]


def report(gpu: str | None = None, gpus: int = 0, *findings: Diagnosis) -> NodeReport:
    return NodeReport(
        name="n", instance_type="x", gpu_product=gpu, pods_per_gpu=1, gpus=gpus, gpus_free=0, disk_bytes=Decimal(0),
        kubelet="v1.34.0", driver=None, is_candidate=False, findings=findings,
    )  # fmt: skip


def test_nodes_of_which_none_offers_a_gpu_are_answered_by_the_device_plugin(context: Make) -> None:
    other_type = Diagnosis("instance-type", "instance type is x, not a type with GPUs", "", None)
    placement = place_pods(load(context()).cluster, GENERIC)
    assert "device plugin" in shortage_message(placement, 1, [report(None, 0, other_type)])
    assert "instance type" in shortage_message(placement, 1, [report(None, 1, other_type)])


def test_nodes_with_different_kinds_of_gpu_are_refused() -> None:
    a10, a100, cordoned = report("A10"), report("A100"), report("A100", 1, finding())
    for same in ([a10, a10, report()], [a10, cordoned]):
        check_gpu_products(ClusterSection(), same)
    with pytest.raises(UsageError, match=r"A10, A100; .*cluster\.gpu"):
        check_gpu_products(ClusterSection(), [a10, a10, a100])
    check_gpu_products(ClusterSection(gpu="any"), [a10, a100])
