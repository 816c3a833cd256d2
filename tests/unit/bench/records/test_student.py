"""Student's t against textbook tables."""

import pytest

from bench.records import student


@pytest.mark.parametrize(
    ("confidence", "df", "expected"),
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 3, 3.182),
        (0.95, 7, 2.365),
        (0.95, 30, 2.042),
        (0.99, 4, 4.604),
        (0.90, 10, 1.812),
        (0.95, 1e6, 1.960),
    ],
)
def test_quantiles_are_those_of_the_tables(confidence, df, expected):
    assert student.quantile(confidence, df) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("df", [0.7, 1, 2.5, 6, 40, 1e4])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.9999])
def test_quantile_and_p_value_are_inverse(confidence, df):
    assert student.two_sided_p(student.quantile(confidence, df), df) == pytest.approx(1 - confidence, rel=1e-6)


def test_extreme_values():
    assert student.two_sided_p(0.0, 3) == 1.0
    assert student.two_sided_p(float("inf"), 3) == 0.0
    assert 0 <= student.two_sided_p(1e9, 400) < 1e-300
    assert student.two_sided_p(-2.5, 4) == student.two_sided_p(2.5, 4)
