"""Trials: validation at construction, trial files, old names, and suites."""

import dataclasses
import json
from pathlib import Path

import pytest

from bench.records import Trial, TrialError, choose, read_trials, suite
from bench.records.trial import SCALES
from tests.support.cases import Case, load_cases

SIZES = {
    "hardware": 1,
    "loading": 2,
    "quick": 3,
    "full": 13,
    "recipes": 10,
    "inference": 2,
    "distributed": 3,
    "all": 22,
}

FIELDS = load_cases(__file__, "impossible_trials.yaml")


@pytest.mark.parametrize("case", FIELDS)
def test_a_value_out_of_range_is_refused_by_key(make_trial, case: Case):
    for value in case["input"]:
        with pytest.raises(TrialError, match=rf"^{case['name']}: expected"):
            make_trial(**{case["name"]: tuple(value) if isinstance(value, list) else value})


def test_a_trial_or_a_list_of_them_comes_back_from_its_file_equal(make_trial, tmp_path: Path):
    trial = make_trial(name="Größe 'A' & \"B\"", lora_targets=("q_proj", "down_proj"), learning_rate=1.0)
    for deadline in (60.0, 60):  # a whole number serves as a number
        (tmp_path / "trial.json").write_text(json.dumps(trial.to_json() | {"deadline_sec": deadline}))
        assert Trial.read(tmp_path / "trial.json") == dataclasses.replace(trial, deadline_sec=60.0)
    other = make_trial(name="other")
    assert read_trials(f"[{trial.to_text()}, {other.to_text()}]", "t.json") == (trial, other)


@pytest.mark.parametrize("case", load_cases(__file__, "trial_files.yaml"))
def test_a_file_that_is_no_trial_is_refused_by_its_name_and_place(make_trial, tmp_path: Path, case: Case):
    text = case["text"].replace("{ONE}", make_trial().to_text())
    (tmp_path / "t.json").write_bytes(b"\xff\xfe" if case["text"] == "not UTF-8" else text.encode())
    with pytest.raises(TrialError, match=rf"t\.json: {case['expected']}[^\n]*$"):
        Trial.read(tmp_path / "t.json") if case["reader"] == "one" else read_trials(text, "t.json")
    with pytest.raises(TrialError, match=r"none\.json: cannot be read: No such file"):
        Trial.read(tmp_path / "none.json")


def test_json_that_python_cannot_hold_is_refused():
    for text in ("[" * 100_000, '{"seed": ' + 5000 * "9" + "}"):
        with pytest.raises(TrialError, match=r"^t\.json: not usable JSON: "):
            read_trials(text, "t.json")


def test_an_id_is_a_safe_folder_name_and_equal_digests_mean_the_same_measurement(make_trial):
    assert make_trial(name='../../etc/it\'s "x" $(rm)').trial_id == "etc-it-s-x-rm"
    assert make_trial(name="ö").trial_id == "trial"
    assert make_trial(name="a", reason="b", suite="c").digest() == make_trial().digest()
    assert make_trial(seed=7).digest() != make_trial().digest()


@pytest.mark.parametrize("profile", SCALES)
@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_suites_have_their_published_sizes_and_unique_ids(name, profile, size):
    trials = suite(name, profile, "M", "D")
    assert len({trial.trial_id for trial in trials}) == size
    assert {trial.profile for trial in trials} == {profile}
    assert name != "quick" or len({trial.tokens_per_step for trial in trials}) == 1
    assert len({trial.digest() for trial in trials}) == size


def test_the_full_suite_changes_one_factor_at_a_time():
    centre, *others = (trial for trial in suite("full", "gpu", "M", "D") if not trial.is_usual)
    for trial in others:
        changed = {
            field.name
            for field in dataclasses.fields(trial)
            if field.name not in ("name", "reason") and getattr(trial, field.name) != getattr(centre, field.name)
        }
        # Rank and alpha move together, so that the adapters' scale alpha / rank stays what it was.
        assert len(changed - {"lora_alpha"}) == 1, trial.name


def test_unknown_suites_profiles_and_trials_are_refused_with_the_choice_whose_order_is_kept():
    trials = suite("quick", "gpu", "M", "D")
    for call, message in (
        (lambda: suite("huge", "gpu", "M", "D"), f"suite: expected one of {', '.join(SIZES)}, found 'huge'"),
        (lambda: suite("quick", "h200", "M", "D"), "profile: expected one of gpu, tiny, found 'h200'"),
        (lambda: choose(trials, ("nope",)), "'nope' is unknown; this suite has baseline, optimized"),
        (lambda: choose(trials, ()), "no trial was chosen; this suite has baseline"),
        (lambda: choose((), ()), "this suite has none"),
    ):
        with pytest.raises(TrialError, match=message):
            call()
    chosen = choose(trials, ("optimized", "baseline", "optimized"))
    assert [trial.trial_id for trial in chosen] == ["optimized", "baseline"]
