"""The result of a search: its Pareto front of speed against memory.

Price is not a third axis: on one kind of GPU at one price, the fastest per useful token is the cheapest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.records import Trial
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from reports.statistics import per_config
from reports.statistics.per_config import estimate, measure, samples
from reports.statistics.per_process import ProcessSteps, describe
from reports.statistics.types import Estimate, Process

RATE = "elapsed_useful_tokens_per_sec"


@dataclass(frozen=True, kw_only=True)
class MeasuredCandidate:
    """One candidate measured in full. Rates are per GPU; `useful_tokens_per_sec` is elapsed, without padding.

    `interval` is the 95 % interval of the rate, Student's t over workers or processes. It is None for a single process,
    which does not show the variation between processes. `failures` is the number of trials that failed, timed out or
    ran out of memory.
    """

    trial: Trial
    useful_tokens_per_sec: float
    interval: Estimate | None
    peak_vram_bytes: int | None
    predicted_bytes: int | None
    usd_per_million_useful_tokens: float | None
    processes: int
    failures: int = 0


def adjusted_rates(results: Iterable[TrialResult]) -> dict[str, Estimate]:
    """Map each candidate's trial id to its useful tokens per second on the mean worker; {} if it cannot be known.

    The worker's own speed is removed: finalists run on different workers.
    """
    described = _describe(results)
    means = per_config.adjusted_means({trial_id: samples(each, RATE) for trial_id, each in described.items()})
    return {
        trial_id: estimate(mean, sum(process.n_steps for process in described[trial_id]))
        for trial_id, mean in means.items()
    }


def not_shown_slower(candidates: Sequence[MeasuredCandidate], results: Iterable[TrialResult]) -> list[str]:
    """Return the trial ids of the candidates that these results do not show to be slower than the first."""
    rates = per_config.combine_all(_describe(results))
    best, *others = (candidate.trial.trial_id for candidate in candidates)
    known = [trial_id for trial_id in others if best in rates and trial_id in rates]
    ratios = {
        name: per_config.ratio(rates[best], rates[name], "useful_tokens", comparisons=len(known)) for name in known
    }
    return [trial_id for trial_id, ratio in ratios.items() if ratio.verdict != "faster"]


def _describe(results: Iterable[TrialResult]) -> dict[str, list[Process]]:
    processes: dict[str, list[ProcessSteps]] = {}
    for result in filter(_is_measured, results):
        processes.setdefault(result.trial.trial_id, []).append(ProcessSteps.from_result(result))
    return {trial_id: describe(steps) for trial_id, steps in processes.items()}


def summarize(
    trial: Trial,
    results: Sequence[TrialResult],
    predicted_bytes: int | None,
    price_usd_per_gpu_hour: float | None,
    adjusted: Estimate | None = None,
) -> MeasuredCandidate | None:
    """Summarize the candidate's successful results; None without any. `adjusted` is its rate on the mean worker."""
    succeeded = [result for result in results if _is_measured(result)]
    if not succeeded:
        return None
    rate = adjusted or measure([ProcessSteps.from_result(result) for result in succeeded]).elapsed_useful_tokens_per_sec
    peaks = [result.metrics.peak_vram_bytes for result in succeeded if result.metrics is not None]
    known = [peak for peak in peaks if peak is not None]
    usd = None if price_usd_per_gpu_hour is None else price_usd_per_gpu_hour / 3600.0 / rate.value * 1e6
    return MeasuredCandidate(
        trial=trial,
        useful_tokens_per_sec=rate.value,
        interval=rate if len(succeeded) > 1 else None,
        peak_vram_bytes=max(known) if known else None,
        predicted_bytes=predicted_bytes,
        usd_per_million_useful_tokens=usd,
        processes=len(succeeded),
        failures=sum(result.status.is_failure for result in results),
    )


def _is_measured(result: TrialResult) -> bool:
    return result.status is TrialStatus.SUCCEEDED and result.metrics is not None


def front(candidates: Sequence[MeasuredCandidate]) -> list[MeasuredCandidate]:
    """Return the Pareto front of speed and memory, fastest first; without memory figures, only the fastest."""
    members: list[MeasuredCandidate] = []
    smallest: float = float("inf")
    for candidate in sorted(candidates, key=lambda measured: -measured.useful_tokens_per_sec):
        size = float("inf") if candidate.peak_vram_bytes is None else float(candidate.peak_vram_bytes)
        if not members or size < smallest:
            members.append(candidate)
            smallest = min(smallest, size)
    return members


def best_at_labels(front: Sequence[MeasuredCandidate]) -> dict[str, str]:
    """Return the labels fastest, cheapest and smallest of the front's members, by trial id."""
    labels: dict[str, list[str]] = {candidate.trial.trial_id: [] for candidate in front}
    if front:
        fastest = front[0]
        labels[fastest.trial.trial_id].append("fastest")
        if fastest.usd_per_million_useful_tokens is not None:
            labels[fastest.trial.trial_id].append("cheapest")
        with_memory = [candidate for candidate in front if candidate.peak_vram_bytes is not None]
        if with_memory:
            smallest = min(with_memory, key=lambda candidate: candidate.peak_vram_bytes or 0)
            labels[smallest.trial.trial_id].append("smallest")
    return {trial_id: ", ".join(names) for trial_id, names in labels.items()}


def document(front: Sequence[MeasuredCandidate], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer as plain JSON values."""
    labels = best_at_labels(front)
    return {
        **facts,
        "front": [
            {
                "trial_id": candidate.trial.trial_id,
                "best_at": labels[candidate.trial.trial_id],
                "useful_tokens_per_sec": candidate.useful_tokens_per_sec,
                "useful_tokens_per_sec_low": None if candidate.interval is None else candidate.interval.low,
                "useful_tokens_per_sec_high": None if candidate.interval is None else candidate.interval.high,
                "processes": candidate.processes,
                "peak_vram_bytes": candidate.peak_vram_bytes,
                "predicted_peak_vram_bytes": candidate.predicted_bytes,
                "usd_per_million_useful_tokens": candidate.usd_per_million_useful_tokens,
                "trial": candidate.trial.to_json(),
            }
            for candidate in front
        ],
    }
