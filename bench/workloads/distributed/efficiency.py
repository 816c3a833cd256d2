"""The arithmetic of a distributed trial, from the times of its ranks. Standard library alone.

Rates are inverted times, so a rate and its interval are those of the median step, as everywhere.
"""

import random
import statistics
from collections.abc import Callable

from bench.records.bootstrap import Interval, quantile

RESAMPLES = 2000


def rate(amount: float, times: Interval) -> Interval:
    """`amount` per second from an interval of seconds."""
    return _falling(times, lambda sec: amount / sec)


def efficiency_percent(without: list[list[float]], with_: list[list[float]]) -> Interval:
    """Median step time without communication over that with it, in percent; both in blocks that alternated.

    low and high are a bootstrap's 95 % interval over the steps of each side; p10 and p90 are those of the blocks'
    ratios, which show whether the machine drifted. Values above 100 are noise and are kept.
    """
    ratios = sorted(100.0 * statistics.median(a) / statistics.median(b) for a, b in zip(without, with_, strict=True))
    off, on = [t for block in without for t in block], [t for block in with_ for t in block]
    chooser = random.Random(0)  # noqa: S311 - a bootstrap wants repeatable, not secret

    def drawn(times: list[float]) -> float:
        return statistics.median(chooser.choices(times, k=len(times)))

    resampled = sorted(100.0 * drawn(off) / drawn(on) for _ in range(RESAMPLES))
    return Interval(
        median=100.0 * statistics.median(off) / statistics.median(on),
        p10=quantile(ratios, 0.1),
        p90=quantile(ratios, 0.9),
        low=quantile(resampled, 0.025),
        high=quantile(resampled, 0.975),
        n=len(off),
    )


def remainder_percent(part: Interval) -> Interval:
    """100 minus an interval in percent."""
    return _falling(part, lambda percent: 100.0 - percent)


def _falling(of: Interval, made: Callable[[float], float]) -> Interval:
    """What `made` makes of an interval: it falls where its argument rises, so the ends swap."""
    return Interval(
        median=made(of.median), p10=made(of.p90), p90=made(of.p10), low=made(of.high), high=made(of.low), n=of.n
    )


def covered(spans: list[tuple[float, float]]) -> float:
    """Seconds covered by at least one of these (start, end) spans: overlapping buckets count once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def bus_factor(world_size: int) -> float:
    """Bytes per link over bytes reduced in a ring all-reduce: 2 (n - 1) / n, as in nccl-tests."""
    return 2.0 * (world_size - 1) / world_size


def block_steps(measured_steps: int) -> int:
    """Steps in one block: at most 5, so that several alternate."""
    return max(1, min(5, measured_steps // 4))
