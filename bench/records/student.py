"""Student's t distribution, for intervals and tests over a few processes.

It uses only the standard library: SciPy would add 100 MB for these two functions. The distribution function is a
regularised incomplete beta function, computed by its continued fraction (NIST Digital Library of Mathematical
Functions, 8.17.22) with Lentz's method.
"""

import functools
import math

_TINY = 1e-300
_CONVERGED = 1e-15
_MAX_TERMS = 500


def two_sided_p(t: float, df: float) -> float:
    """Return the probability of a value at least as far from 0 as `t`. `df` is above 0 and need not be an integer."""
    if math.isinf(t):
        return 0.0
    return _regularised_beta(df / 2.0, 0.5, df / (df + t * t))


@functools.lru_cache(maxsize=4096)
def quantile(confidence: float, df: float) -> float:
    """Return the two-sided quantile of t, `confidence` between 0 and 1: 12.706 for 0.95 and one degree of freedom."""
    low, high = 0.0, 1.0
    while two_sided_p(high, df) > 1.0 - confidence:
        low, high = high, 2.0 * high
    while high - low > 1e-10 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if two_sided_p(middle, df) > 1.0 - confidence else (low, middle)
    return (low + high) / 2.0


def _regularised_beta(a: float, b: float, x: float) -> float:
    """Compute the regularised incomplete beta function I_x(a, b), x from 0 to 1."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x),
    )
    if x < (a + 1.0) / (a + b + 2.0):  # the fraction converges fast here
        return front * _continued_fraction(a, b, x) / a
    return 1.0 - front * _continued_fraction(b, a, 1.0 - x) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + term * d)
            c = _away_from_zero(1.0 + term / c)
            change = c * d
            value *= change
        if abs(change - 1.0) < _CONVERGED:
            return value
    raise ArithmeticError(f"incomplete beta function: no convergence for a={a}, b={b}, x={x}")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
