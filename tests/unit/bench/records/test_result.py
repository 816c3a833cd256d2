"""A record is read back completely, or the reader raises an error that names the file."""

import json
import os
import random
import stat
from pathlib import Path

import numpy
import pytest

from bench.records.atomic_files import write_atomic
from bench.records.bootstrap import Interval, quantile, summarize
from bench.records.checksummed import ResultError
from bench.records.result import Steps, TrialResult
from bench.records.status import ReasonCode, TrialStatus
from tests.support.faults import full_disk
from tests.support.reports import synthetic


@pytest.fixture
def result(make_trial) -> TrialResult:
    steps = Steps(step_time_sec=[0.1, 0.3], loss=[2.0, None], samples=[2, 2], tokens=[64, 64], useful_tokens=[9, 8])
    return TrialResult(
        trial_id="small.worker-1",
        trial=make_trial(),
        status=TrialStatus.FAILED,
        reason="the loss is nan at measure step 2",
        reason_code=ReasonCode.NON_FINITE_LOSS,
        phases={"import": 0.5},
        steps=steps,
        metrics=synthetic.metrics_of(steps),
        fingerprint={"python": "3.11", "gpu_name": None, "cores": 2},
        log_tail=["line 'one'", "zwei ✓"],
    )


def test_a_result_round_trips_and_a_second_write_replaces_it(result, make_trial, tmp_path: Path):
    path = result.write(tmp_path)
    assert path == tmp_path / "result.json"
    assert TrialResult.read(path) == result
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    other = TrialResult(trial_id="b", trial=make_trial(), status=TrialStatus.SUCCEEDED, reason=None)
    assert TrialResult.read(other.write(tmp_path)) == other


@pytest.mark.slow
def test_a_result_cut_or_with_a_bit_flipped_is_refused_by_name_or_equal(result, tmp_path: Path):
    whole, path = result.write(tmp_path).read_bytes(), tmp_path / "damaged.json"
    for length in range(0, len(whole) - 1, 97):  # without its last newline the document is still complete
        path.write_bytes(whole[:length])
        with pytest.raises(ResultError, match=r"damaged\.json: not complete JSON"):
            TrialResult.read(path)
    generator, refusals = random.Random(42), list[str]()
    for _ in range(100):
        index, bit = generator.randrange(len(whole)), generator.randrange(8)
        path.write_bytes(whole[:index] + bytes([whole[index] ^ (1 << bit)]) + whole[index + 1 :])
        try:
            assert TrialResult.read(path) == result  # a flipped space between two values changes nothing
        except ResultError as error:
            refusals.append(str(error))
    assert len(refusals) > 50
    assert all("damaged.json: " in refusal for refusal in refusals)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            ({"schema_version": number}, rf"qlora-fleet {number}\.x; .* 2\.x; {number}\.x reads it")
            for number in (1, 3)
        ),
        *(({"version": text}, "an unknown version; .* 2.x$") for text in (None, "x", "9" * 99, ["2"])),
        ({"version": "1.9.0"}, "1.x reads it"),
        *(({"kind": kind}, "not a trial_result record") for kind in ("run", None)),
        *((change, "sha256 does not match") for change in ({"sha256": None}, {"sha256": "0" * 64}, {"attempt": 9})),
    ],
)
def test_a_record_of_another_version_kind_or_digest_is_refused_by_name(result, tmp_path: Path, change, message):
    path = result.write(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ResultError, match=rf"result\.json: .*{message}"):
        TrialResult.read(path)


@pytest.mark.parametrize("content", [b"[]", b"null", b"3", b'"x"', b"[" * 100_000, b"\xff"])
def test_other_json_and_no_json_are_refused_by_name(tmp_path: Path, content):
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(ResultError, match=r"r\.json: not "):
        TrialResult.read(tmp_path / "r.json")
    with pytest.raises(ResultError, match=r"result\.json: cannot be read: No such file"):
        TrialResult.read(tmp_path / "result.json")


def test_a_checksummed_record_with_an_invalid_trial_is_refused_by_key(result, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("bench.records.Trial.__post_init__", lambda _: None)
    object.__setattr__(result.trial, "micro_batch_size", -1)
    path = result.write(tmp_path)
    monkeypatch.undo()
    with pytest.raises(ResultError, match="micro_batch_size: expected 1 to 4096 times max_seq_len tokens, found -1"):
        TrialResult.read(path)


def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch):
    write_atomic(tmp_path / "f", b"old")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("size", [1, 2, 3, 10, 101])
def test_quantiles_are_numpys(size):
    values = sorted(random.Random(size).gauss(0, 1) for _ in range(size))
    for share in (0.0, 0.025, 0.1, 0.5, 0.9, 0.975, 1.0):
        assert quantile(values, share) == pytest.approx(numpy.quantile(values, share))


def test_a_summary_is_the_same_in_any_order_and_one_value_is_its_own():
    summary = summarize([0.3, 1.0, 2.0, 3.0, 50.0])
    assert summary == summarize([50.0, 1.0, 2.0, 3.0, 0.3])
    assert summary.low <= summary.median <= summary.high
    assert summarize([0.5]) == Interval(median=0.5, low=0.5, high=0.5, n=1)
    with pytest.raises(ValueError, match="no values"):
        summarize([])


def test_the_95_percent_interval_holds_the_true_median_about_that_often():
    chooser, held = random.Random(7), 0
    for round_ in range(100):
        summary = summarize([chooser.gauss(1.0, 0.2) for _ in range(30)], resamples=200, seed=round_)
        held += summary.low <= 1.0 <= summary.high
    # The percentile bootstrap of a median of 30 is known to be a little off, never this far.
    assert 88 <= held <= 100
