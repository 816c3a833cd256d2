"""What a search found: the front of speed against memory. Every other candidate is slower and larger than one in it.

Price is no third axis: on one kind of GPU at one price, the fastest per useful token is the cheapest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.records import Trial
from bench.records.result import TrialResult, TrialStatus
from reports.statistics.per_config import measure
from reports.statistics.per_process import ProcessSteps
from reports.statistics.types import Estimate


@dataclass(frozen=True, kw_only=True)
class MeasuredCandidate:
    """One candidate measured in full. Rates are per GPU; `useful_tokens_per_sec` leaves padding out.

    `interval` is the report's own 95 % interval of the rate, Student's t over workers or processes; None for a single
    process, which says nothing of the next.
    """

    trial: Trial
    useful_tokens_per_sec: float
    interval: Estimate | None
    peak_vram_bytes: int | None
    predicted_bytes: int | None
    usd_per_million_useful_tokens: float | None
    processes: int


def measured(
    trial: Trial, results: Sequence[TrialResult], predicted_bytes: int | None, price_usd_per_gpu_hour: float | None
) -> MeasuredCandidate | None:
    """The candidate's figures over its successful results; None where there is none."""
    good = [result for result in results if result.status is TrialStatus.SUCCEEDED and result.metrics is not None]
    if not good:
        return None
    rate = measure([ProcessSteps.of(one) for one in good]).useful_tokens_per_sec
    peaks = [one.metrics.peak_vram_bytes for one in good if one.metrics is not None]
    known = [peak for peak in peaks if peak is not None]
    usd = None if price_usd_per_gpu_hour is None else price_usd_per_gpu_hour / 3600.0 / rate.value * 1e6
    return MeasuredCandidate(
        trial=trial,
        useful_tokens_per_sec=rate.value,
        interval=rate if len(good) > 1 else None,
        peak_vram_bytes=max(known) if known else None,
        predicted_bytes=predicted_bytes,
        usd_per_million_useful_tokens=usd,
        processes=len(good),
    )


def front(found: Sequence[MeasuredCandidate]) -> list[MeasuredCandidate]:
    """Those that nothing beats in both speed and memory, fastest first. Without memory figures, the fastest alone."""
    ordered = sorted(found, key=lambda one: -one.useful_tokens_per_sec)
    kept: list[MeasuredCandidate] = []
    smallest: float = float("inf")
    for one in ordered:
        size = float("inf") if one.peak_vram_bytes is None else float(one.peak_vram_bytes)
        if not kept or size < smallest:
            kept.append(one)
            smallest = min(smallest, size)
    return kept


def titles(kept: Sequence[MeasuredCandidate]) -> dict[str, str]:
    """What each of a front's members is best at, by trial id."""
    named: dict[str, list[str]] = {one.trial.trial_id: [] for one in kept}
    if kept:
        fastest = kept[0]
        named[fastest.trial.trial_id].append("fastest")
        if fastest.usd_per_million_useful_tokens is not None:
            named[fastest.trial.trial_id].append("cheapest")
        sized = [one for one in kept if one.peak_vram_bytes is not None]
        if sized:
            smallest = min(sized, key=lambda one: one.peak_vram_bytes or 0)
            named[smallest.trial.trial_id].append("smallest")
    return {trial_id: ", ".join(words) for trial_id, words in named.items()}


def document(kept: Sequence[MeasuredCandidate], about: Mapping[str, Any]) -> dict[str, Any]:
    """The answer as plain JSON values."""
    best_at = titles(kept)
    return {
        **about,
        "front": [
            {
                "trial_id": one.trial.trial_id,
                "best_at": best_at[one.trial.trial_id],
                "useful_tokens_per_sec": one.useful_tokens_per_sec,
                "useful_tokens_per_sec_low": None if one.interval is None else one.interval.low,
                "useful_tokens_per_sec_high": None if one.interval is None else one.interval.high,
                "processes": one.processes,
                "peak_vram_bytes": one.peak_vram_bytes,
                "predicted_peak_vram_bytes": one.predicted_bytes,
                "usd_per_million_useful_tokens": one.usd_per_million_useful_tokens,
                "trial": one.trial.to_json(),
            }
            for one in kept
        ],
    }
