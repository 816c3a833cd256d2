"""Efficiency and rates of a distributed trial, computed from its ranks' times. Standard library only.

Rates are inverted times, so a rate and its interval belong to the median step, as in all measurements.
"""

import random
import statistics
from collections.abc import Callable

from bench.records.bootstrap import Interval, quantile

RESAMPLES = 2000


def rate(amount: float, times: Interval) -> Interval:
    """Return `amount` per second for an interval of seconds."""
    return _map_decreasing(times, lambda sec: amount / sec)


def efficiency_percent(without: list[list[float]], with_: list[list[float]]) -> Interval:
    """Divide the median step time without communication by the one with it, in percent; blocks of both alternate.

    low and high are a bootstrap's 95 % interval over the steps of each side; p10 and p90 are quantiles of the blocks'
    ratios, which show whether the machine drifted. Values above 100 are noise and are not clipped.
    """
    ratios = sorted(100.0 * statistics.median(a) / statistics.median(b) for a, b in zip(without, with_, strict=True))
    off, on = [t for block in without for t in block], [t for block in with_ for t in block]
    chooser = random.Random(0)  # noqa: S311 - a bootstrap wants repeatable, not secret

    def resampled_median(times: list[float]) -> float:
        return statistics.median(chooser.choices(times, k=len(times)))

    resampled = sorted(100.0 * resampled_median(off) / resampled_median(on) for _ in range(RESAMPLES))
    return Interval(
        median=100.0 * statistics.median(off) / statistics.median(on),
        p10=quantile(ratios, 0.1),
        p90=quantile(ratios, 0.9),
        low=quantile(resampled, 0.025),
        high=quantile(resampled, 0.975),
        n=len(off),
    )


def remainder_percent(part: Interval) -> Interval:
    """Subtract an interval in percent from 100."""
    return _map_decreasing(part, lambda percent: 100.0 - percent)


def _map_decreasing(values: Interval, map_: Callable[[float], float]) -> Interval:
    """Map an interval by a decreasing function, which swaps the ends."""
    return Interval(
        median=map_(values.median),
        p10=map_(values.p90),
        p90=map_(values.p10),
        low=map_(values.high),
        high=map_(values.low),
        n=values.n,
    )


def covered_sec(spans: list[tuple[float, float]]) -> float:
    """Sum the seconds covered by at least one of these (start, end) spans: overlapping buckets count once."""
    total, covered_until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, covered_until))
        covered_until = max(covered_until, end)
    return total


def bus_factor(world_size: int) -> float:
    """Return bytes per link over bytes reduced in a ring all-reduce: 2 (n - 1) / n, as in nccl-tests."""
    return 2.0 * (world_size - 1) / world_size


def block_steps(measured_steps: int) -> int:
    """Return the steps of one block: at most 5, so that several blocks alternate."""
    return max(1, min(5, measured_steps // 4))
