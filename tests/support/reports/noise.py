"""Simulated step times with autocorrelated steps, different processes and workers, outliers and drift.

Processes differ by 0.35 % by default, as on one GPU (the standard deviation of three whose medians spanned 0.7 %).
Steps are noisier than those, whose medians were known to 0.1 %; ON_A_GPU simulates these, with some margin.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reports.statistics.per_process import ProcessSteps

Floats = NDArray[np.float64]


def steps(
    worker: str = "a",
    times: ArrayLike = (0.1, 0.2, 0.3),
    *,
    samples: ArrayLike = 4,
    tokens: ArrayLike = 100,
    useful: ArrayLike = 50,
    process: str | None = None,
) -> ProcessSteps:
    """Make a process's steps; each amount is one number for all steps, or one per step."""
    times = np.array(times, dtype=float)
    return ProcessSteps(
        process=process or f"trial.{worker}",
        worker=worker,
        step_time_sec=times,
        samples=np.full(len(times), samples, dtype=float),
        tokens=np.full(len(times), tokens, dtype=float),
        useful_tokens=np.full(len(times), useful, dtype=float),
    )


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Noise as standard deviations and fractions; `drift` is from a process's first step to its last."""

    steps: float = 0.02
    correlation: float = 0.4
    processes: float = 0.0035
    workers: float = 0.01
    outliers: float = 0.03
    drift: float = 0.005

    def process(self, random: np.random.Generator, count: int, middle: float = 0.0) -> Floats:
        """Draw the logarithms of one process's step times around `middle`."""
        return middle + random.normal(0.0, self.processes) + self.within_process(random, (count,))

    def within_process(self, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Draw the noise within processes, of shape (..., steps)."""
        fresh = random.normal(0.0, self.steps * np.sqrt(1.0 - self.correlation**2), shape)
        steps = np.empty(shape)
        steps[..., 0] = random.normal(0.0, self.steps, shape[:-1])
        for step in range(1, shape[-1]):
            steps[..., step] = self.correlation * steps[..., step - 1] + fresh[..., step]
        slow = np.where(random.random(shape) < self.outliers, np.log(1.5), 0.0)
        slope = self.drift * random.uniform(-1.0, 1.0, (*shape[:-1], 1)) * np.linspace(-0.5, 0.5, shape[-1])
        return np.asarray(steps + slow + slope)

    def median_offset(self, count: int, seed: int = 99) -> float:
        """Estimate the mean of a process's median, which outliers raise a little."""
        samples = self.within_process(np.random.default_rng(seed), (20_000, count))
        return float(np.median(samples, axis=1).mean())


ON_A_GPU = Noise(steps=0.005)
