"""The plan of a run: which trials run where and how often, how they are shown; and the file that trials come from."""

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from bench.records import Trial, suite
from bench.records.run import PlannedTrial
from bench.records.training import DEFAULT_DATA_OPTIONS, DataOptions
from tasks.errors import UsageError
from tasks.fleet import plan
from tasks.fleet.plan import plan_trials, read_trials
from tasks.settings.layers import load

MakeContext = Callable[..., Context]
TRIALS = suite("quick", "tiny", "models/m", "data/d.jsonl")[:2]
WORKERS = ["worker-0", "worker-1", "worker-2"]
FULL = suite("full", "tiny", "models/m", "data/d.jsonl")


def orders(planned: Sequence[PlannedTrial]) -> dict[str | None, list[str]]:
    """Map each worker to its trials in order."""
    return {
        worker: [each.trial.trial_id for each in planned if each.worker == worker]
        for worker in dict.fromkeys(each.worker for each in planned)
    }


def test_over_pods_a_trial_of_several_ranks_is_planned_once_if_each_rank_has_a_pod() -> None:
    (pair,) = [trial for trial in suite("distributed", "tiny", "m", "d") if trial.world_size == 2]
    assert [each.worker for each in plan_trials([pair], WORKERS, is_over_pods=True)] == WORKERS[:1]
    with pytest.raises(UsageError, match=r"^fleet\.size: .* 2 ranks, one in each pod, and the fleet has 1 pods"):
        plan_trials([pair], WORKERS[:1], is_over_pods=True)


def test_a_divided_plan_has_every_trial_once() -> None:
    planned = plan.divide_trials(FULL[:3], WORKERS[:2])
    assert [(each.trial, each.worker) for each in planned] == [
        (FULL[0], "worker-0"),
        (FULL[1], "worker-1"),
        (FULL[2], "worker-0"),
    ]


def test_a_round_of_all_trials_ends_before_the_next_begins() -> None:
    for order in orders(plan_trials(FULL, WORKERS, 3, seed="a")).values():
        rounds = [order[start : start + len(FULL)] for start in range(0, len(order), len(FULL))]
        assert [sorted(each) for each in rounds] == 3 * [sorted(trial.trial_id for trial in FULL)]


def test_two_trials_run_in_both_orders_so_that_drift_does_not_pass_for_a_difference() -> None:
    a, b = (trial.trial_id for trial in TRIALS)
    assert orders(plan_trials(TRIALS, WORKERS[:2])) == {WORKERS[0]: [a, b], WORKERS[1]: [b, a]}
    assert orders(plan_trials(TRIALS, WORKERS[:1], 2)) == {WORKERS[0]: [a, b, b, a]}


@pytest.mark.parametrize(
    ("suite_name", "workers", "repeats"), [("quick", 1, 2), ("quick", 2, 1), ("full", 1, 2), ("hardware", 1, 1)]
)
def test_a_single_worker_runs_what_it_compares_twice(suite_name: str, workers: int, repeats: int) -> None:
    trials = suite(suite_name, "tiny", "models/m", "data/d.jsonl")
    assert plan.default_repeats(trials, workers) == repeats
    assert plan.default_repeats(TRIALS[:1], 1) == 1


def test_each_worker_begins_at_another_trial_and_each_round_one_later() -> None:
    planned = orders(plan_trials(FULL, WORKERS, 2, seed="a"))
    firsts = [[order[0], order[len(FULL)]] for order in planned.values()]
    names = [trial.trial_id for trial in FULL]
    assert firsts == [[names[index], names[index + 1]] for index in (0, 4, 8)]
    assert planned[WORKERS[0]][: len(FULL)] == names


def test_runs_over_pods_that_are_planned_in_the_same_second_have_different_ids(
    context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators do not coordinate, and jobs in the pods are found by the run's id."""
    monkeypatch.setattr(plan, "cluster_location", lambda _: {"context": "dev"})
    monkeypatch.setattr(plan, "git_state", lambda _: {})
    for kind, count in (("pods", 8), ("local", 1)):
        settings = load(context(text=f"fleet: {{kind: {kind}}}"))
        names = [plan.new_record(settings, "quick", [], [], inputs={}).run_id for _ in range(8)]
        assert len(set(names)) >= count
        assert all("-quick" in name for name in names)


def test_the_order_of_the_other_trials_is_the_seeds() -> None:
    first, again, other = (orders(plan_trials(FULL, WORKERS, seed=seed)) for seed in ("a", "a", "b"))
    assert first == again
    assert first[WORKERS[1]] != other[WORKERS[1]]


def test_each_repeat_has_an_id_of_its_own() -> None:
    named = [planned.trial_id for planned in plan_trials(TRIALS, WORKERS, 3)]
    assert max(Counter(named).values()) == 1
    assert Counter(name.rsplit(".", 1)[1] for name in named) == dict.fromkeys(("r1", "r2", "r3"), len(named) // 3)


def test_each_kind_has_a_size() -> None:
    sizes = {each.trial_id: each.workload.size.format_map(vars(each)) for each in suite("all", "tiny", "m", "d")}
    assert (sizes["hardware"], sizes["optimized"], sizes["ddp-2"]) == ("-", "64 x 8", "64 x 8 x 2")


def write_trial(path: Path, trial: Trial) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(trial.to_json()))


def test_a_path_typed_in_a_subfolder_is_found_there_and_else_in_the_project(
    project: Path, context: MakeContext, make_trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(context())
    write_trial(project / "a" / "mine.json", make_trial(name="below"))
    write_trial(project / "results" / "best.json", make_trial(name="in the project"))
    monkeypatch.chdir(project / "a")
    for file, name in (("mine.json", "below"), ("results/best.json", "in the project"), ("../a/mine.json", "below")):
        assert [trial.name for trial in read_trials(settings, file, None)] == [name]
    write_trial(project / "mine.json", make_trial(name="next to invoke.yaml"))
    assert [trial.name for trial in read_trials(settings, "mine.json", None)] == ["below"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (str, "No such file or directory"),
        (os.mkfifo, "regular file"),
        (lambda path: path.write_bytes(b"\xff"), "UTF-8"),
        (lambda path: os.truncate(path.touch() or path, 1 << 40), "16,777,216 bytes"),
    ],
)
def test_an_invalid_trial_file_is_an_error_and_never_blocks(
    make: Callable[[Path], Any], reason: str, project: Path, context: MakeContext
) -> None:
    make(project / "t.json")
    with pytest.raises(UsageError) as error_info:
        read_trials(load(context()), "t.json", None)
    message = str(error_info.value)
    assert message.startswith("bench: --trial-file: t.json: ")
    assert reason in message


@pytest.mark.parametrize(
    ("train", "options"),
    [
        ({}, None),
        ({"label_mask": "all", "system": "Be brief"}, {"labels": "all", "system": "Be brief"}),
        ({"chat_template": "t.jinja"}, {"chat_template": "{{ messages }}"}),
        ({"special_tokens": "keep"}, {"special_tokens": "keep"}),
    ],
)
def test_trials_read_data_by_the_settings_of_a_training(
    train: dict[str, Any],
    options: dict[str, Any] | None,
    project: Path,
    context: MakeContext,
    make_trial: Callable[..., Trial],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(project)
    (project / "t.jinja").write_text("{{ messages }}")
    settings = load(context(text=json.dumps({"train": train})))
    expected = None if options is None else dataclasses.replace(DEFAULT_DATA_OPTIONS, **options)
    write_trial(project / "mine.json", make_trial())
    trials = (*plan.choose_trials(settings, "all", None), *read_trials(settings, "mine.json", None))
    assert [trial.data_options for trial in (*trials, plan.input_trial(settings))] == [expected] * (len(trials) + 1)
    assert all(Trial.from_json(json.loads(trial.to_text())) == trial for trial in trials)
    write_trial(project / "own.json", make_trial(data_options=DataOptions(system="Own")))
    (trial,) = read_trials(settings, "own.json", None)
    assert trial.reading.system == "Own"


ROW, *REST = OPEN = ("micro_batch_size", "gradient_checkpointing", "held_layers", "optimizer")


@pytest.mark.parametrize(
    ("profile", "train", "fields", "derive"),
    [
        ("gpu", {}, {"recipe": "fast", "max_seq_len": 512, "layout": "varlen"}, OPEN),
        ("gpu", {"max_seq_len": 2048, "micro_batch_size": 2}, {"max_seq_len": 2048, "micro_batch_size": 2}, REST),
        ("tiny", {"max_seq_len": 2048, "lora_rank": 8}, {"max_seq_len": 64, "lora_rank": 8}, REST),
        ("gpu", {"data": ["mine.jsonl"], "matmul": "int8"}, {"data": "mine.jsonl", "matmul": "int8"}, OPEN),
    ],
)
def test_one_trial_of_a_suite_is_what_the_settings_train(
    profile: str, train: dict[str, Any], fields: dict[str, Any], derive: tuple[str, ...], context: MakeContext
) -> None:
    settings = load(context(text=json.dumps({"train": train, "bench": {"profile": profile}})))
    for name in ("quick", "full"):
        trials = plan.choose_trials(settings, name, None)
        (usual,) = (trial for trial in trials if trial.is_usual)
        assert {field: getattr(usual, field) for field in fields} == fields
        assert set(usual.derive) == set(derive)
        assert not any(trial.derive for trial in trials if trial is not usual)
    fitted = {"derived": {"train": {"micro_batch_size": 4, "optimizer": "adamw_torch"}}}
    assert [trial.derive for trial in plan.with_derived((usual,), fitted)] == [()]
    assert plan.with_derived((usual,), fitted)[0].micro_batch_size == 4
