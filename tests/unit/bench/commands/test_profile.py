"""Kernels by kind: names that real steps launch, and shares that add up."""

import pytest

from bench.commands.cli import main
from bench.commands.profile import kind_of, sum_by_kind
from tests.support.cases import Case, load_cases


@pytest.mark.parametrize("case", load_cases(__file__, "kernels.yaml"))
def test_a_kernel_is_sorted_by_its_name(case: Case):
    assert kind_of(case["name"]) == case["expected"]


def test_shares_add_up_to_the_step_and_what_is_missing_is_idle():
    shares = sum_by_kind([("nvjet_a", 5.0, 2), ("nvjet_b", 1.0, 1), ("_nf4_dequantize", 2.0, 4)], 10.0)
    assert [(share.kind, share.milliseconds, share.launches) for share in shares] == [
        ("matrix products", 6.0, 3),
        ("NF4 dequantization", 2.0, 4),
        ("idle", 2.0, 0),
    ]
    assert sum(share.percent for share in shares) == pytest.approx(100)


def test_kernels_that_overlap_leave_no_idle_time():
    shares = sum_by_kind([("nvjet", 8.0, 1), ("Memcpy HtoD", 4.0, 1)], 10.0)
    assert [(share.kind, round(share.percent, 1)) for share in shares] == [("matrix products", 66.7), ("copies", 33.3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trial-name", "load-nf4", "--suite", "loading"], "; choose it with --trial-name"),
        ([], "--trial-name"),
        (["--trial-name", "generate-nf4", "--suite", "inference"], "; choose it with --trial-name"),
        (["--trial-name", "fast", "--suite", "recipes"], "profile gpu "),
    ],
)
def test_a_trial_that_cannot_be_profiled_is_rejected(capsys, monkeypatch, arguments, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["profile", *arguments, "--model", "M", "--data", "D"]) == 2
    assert message in capsys.readouterr().err
