"""What the cluster's tasks decide by themselves: the image, what was not collected, when waiting is pointless."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from bench.records import Trial
from bench.records.atomic_files import sha256_of
from bench.records.paths import LEDGER_FILE, SUMS_FILE
from bench.records.result import TrialStatus
from bench.records.run import PlannedTrial
from remote.cluster.diagnosis.finding import Diagnosis
from remote.cluster.kubeconfig import Target
from remote.fleet.ledger import Ledger
from tasks.clients.image_ref import image_of
from tasks.cluster.nodes import need_of
from tasks.cluster.wait import WaitPolicy
from tasks.errors import UsageError
from tasks.fleet.pending_results import DISCARDED_FILE, discard, incomplete_runs, uncollected
from tasks.settings.load import load
from tests.support.reports import synthetic

Make = Callable[..., Context]
MakeRun = Callable[..., tuple[Path, Ledger]]
HEX = "sha256:" + "ab" * 32
DEV = {"context": "dev", "server": "https://dev:6443", "namespace": "qlora-fleet"}
TARGET = Target(cluster="c", user="u", **DEV)
IMAGE = {"schema_version": 1, "repository": "fra.ocir.io/ns/r", "digest": HEX, "size_bytes": 5, "compressed_bytes": 2}


def written(project: Path, text: str) -> None:
    (project / "results").mkdir()
    (project / "results" / "image.json").write_text(text)


def test_the_image_is_the_one_that_was_pushed(project: Path, context: Make) -> None:
    written(project, json.dumps(IMAGE))
    image = image_of(load(context()))
    assert (image.reference, image.size_bytes) == (f"fra.ocir.io/ns/r@{HEX}", 7)


@pytest.mark.parametrize(("requires", "least"), [("cuda>=12.8", 570), (None, 525), (7, 525), ("nonsense", 525)])
def test_the_drivers_that_a_node_needs_are_those_of_the_pushed_image(
    requires: object, least: int, project: Path, context: Make
) -> None:
    written(project, json.dumps({**IMAGE, "requires": requires}))
    found = load(context())
    assert need_of(found, image_of(found)).drivers.since == least


def test_the_image_of_the_settings_is_taken_first(project: Path, context: Make) -> None:
    written(project, json.dumps(IMAGE))
    assert image_of(load(context(text=f"cluster: {{image: 'h/other@{HEX}'}}"))).repository == "h/other"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "not there; `inv push` writes it"),
        ("{", "cannot be read"),
        ("[]", "not what `inv push` writes"),
        ("{}", "not what `inv push` writes"),
        ('{"repository": "h/r", "digest": "latest"}', "not what `inv push` writes"),
    ],
)
def test_without_a_pushed_image_there_is_one_line(text: str | None, words: str, project: Path, context: Make) -> None:
    if text is not None:
        written(project, text)
    with pytest.raises(UsageError, match=r"image\.json") as caught:
        image_of(load(context()))
    assert words in str(caught.value)


def test_a_tag_alone_is_refused_with_the_reason(context: Make) -> None:
    with pytest.raises(UsageError, match=r"cluster\.image: .*names no digest, and a tag can move"):
        image_of(load(context(text="cluster: {image: 'fra.ocir.io/ns/r:1.0'}")))


@pytest.fixture
def run(tmp_path: Path, make_trial: Callable[..., Trial]) -> MakeRun:
    """A run of one trial over pods, as `inv bench` leaves it when it has only been planned; fields may be changed."""

    def make(run_id: str = "r1", **changes: Any) -> tuple[Path, Ledger]:
        planned = PlannedTrial(trial_id="small", trial=make_trial(), worker="worker-0")
        provenance = {"cluster": {**DEV, "context": "old"}}
        given = {"run_id": run_id, "planned": [planned], "fleet_kind": "pods", "provenance": provenance}
        folder = tmp_path / run_id
        folder.mkdir()
        synthetic.record(**(given | changes)).write(folder)
        return folder, Ledger.create(folder / LEDGER_FILE, ["small"])

    return make


def ended(ledger: Ledger, end: TrialStatus = TrialStatus.SUCCEEDED, *, attempt: int = 1) -> None:
    ledger.started("small", attempt, "worker-0", "/scratch/x")
    ledger.ended("small", end, None, attempt)


def summed(folder: Path, name: str) -> None:
    """Sums as `inv collect` leaves them, of the ledger and one more file."""
    (folder / SUMS_FILE).write_text(f"{sha256_of(folder / LEDGER_FILE)}  {LEDGER_FILE}\n{'0' * 64}  {name}\n")


def lines(results: Path) -> list[str]:
    return [one.line for one in uncollected(results, TARGET)]


def test_a_run_that_ended_is_collected_once_its_sums_name_every_trial(tmp_path: Path, run: MakeRun) -> None:
    folder, ledger = run()
    ended(ledger)
    assert "it was never collected" in lines(tmp_path)[0]
    summed(folder, "run.json")
    assert "1 of 1 trials were not collected" in lines(tmp_path)[0]
    summed(folder, "trials/small/result.json")
    assert lines(tmp_path) == []


def test_a_run_that_went_on_after_it_was_collected_is_not_collected(tmp_path: Path, run: MakeRun) -> None:
    folder, ledger = run()
    ended(ledger, TrialStatus.CANCELLED)
    summed(folder, "trials/small/result.json")
    assert lines(tmp_path) == []
    ledger.reopened("small")
    ended(ledger, attempt=2)
    assert "run r1: it went on after it was collected; `inv collect --run=r1` brings it" in lines(tmp_path)


NOT_ENDED = ["run r1: 1 of 1 trials have not ended; `inv bench --resume=r1` goes on"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, NOT_ENDED),
        # a laptop whose clock is wrong throws nothing away
        ({"created_at": "1990-01-01T00:00:00+00:00"}, NOT_ENDED),
        ({"created_at": "2090-01-01T00:00:00+00:00"}, NOT_ENDED),
        # never in these pods
        ({"fleet_kind": "local"}, []),
        ({"provenance": {"cluster": {**DEV, "namespace": "other"}}}, []),
        ({"provenance": {"cluster": {**DEV, "server": "https://prod:6443"}}}, []),
        ({"provenance": {}}, []),
    ],
)
def test_a_run_that_has_not_ended_is_not_collected_unless_it_never_was_in_these_pods(
    changes: dict[str, Any], expected: list[str], tmp_path: Path, run: MakeRun
) -> None:
    run(**changes)
    assert lines(tmp_path) == expected


def test_a_damaged_run_counts_as_not_collected(tmp_path: Path, run: MakeRun) -> None:
    folder, _ = run()
    (folder / "run.json").write_text("{}")
    assert "whether it was collected is not known" in lines(tmp_path)[0]


def test_a_run_that_was_given_up_is_not_asked_about_again(
    tmp_path: Path, run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run()
    discard(uncollected(tmp_path, TARGET))
    assert capsys.readouterr().out.startswith("discarded: run r1: 1 of 1 trials have not ended")
    assert lines(tmp_path) == []


def test_what_all_brings_is_every_run_that_is_not_whole_and_was_not_given_up(tmp_path: Path, run: MakeRun) -> None:
    run("planned")
    ended(run("done-elsewhere", fleet_kind="local")[1])
    (run("given-up")[0] / DISCARDED_FILE).touch()
    folder, ledger = run("whole")
    ended(ledger)
    summed(folder, "trials/small/result.json")
    (tmp_path / "latest").symlink_to("planned")
    assert incomplete_runs(tmp_path) == ["done-elsewhere", "planned"]


def finding(cause: str = "no-gpu", patience_sec: float | None = 60.0) -> Diagnosis:
    return Diagnosis(subject="pod p", cause=cause, reason="r", remedy="d", patience_sec=patience_sec)


HOPELESS, AT_ANY_TIME = finding("invalid-name", 15.0), finding(patience_sec=None)


@pytest.mark.parametrize(
    ("looks", "ends"),
    [
        ([(100.0, [finding()]), (159.9, [finding()]), (160.0, [finding()])], [None, None, finding()]),
        ([(0.0, [finding()]), (50.0, []), (100.0, [finding()])], [None, None, None]),
        ([(0.0, [AT_ANY_TIME]), (1e6, [AT_ANY_TIME])], [None, None]),
        ([(0.0, [finding(), HOPELESS]), (20.0, [finding(), HOPELESS])], [None, HOPELESS]),
    ],
    ids=["outlasts", "went away and starts again", "may pass at any time", "the hopeless one of several is named"],
)
def test_a_finding_ends_the_wait_when_it_outlasts_its_patience(
    looks: list[tuple[float, list[Diagnosis]]], ends: list[Diagnosis | None]
) -> None:
    patience = WaitPolicy()
    assert [patience.exhausted(found, now) for now, found in looks] == ends


def test_the_next_look_is_no_later_than_a_patience_ends() -> None:
    patience = WaitPolicy()
    both = [finding(), finding("invalid-name", 10.0), finding("terminating", None)]
    patience.exhausted(both, 100.0)
    assert patience.left_sec(both, 104.0) == 6.0
    assert patience.left_sec(both[2:], 104.0) == float("inf")


def test_a_login_that_was_refused_before_the_new_secret_may_last_until_the_kubelet_asks_again() -> None:
    patience = WaitPolicy(login_sec=330.0)
    both = [finding("unauthorized", 10.0), finding("not-found", 340.0)]
    patience.exhausted(both, 0.0)
    assert patience.left_sec(both, 0.0) == 330.0
    assert patience.exhausted(both, 329.9) is None
    assert patience.exhausted(both, 330.0) == both[0]
