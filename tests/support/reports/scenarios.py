"""Fleets that are built otherwise than `noise.py`'s, to try the report on: whole runs as loaded, thousands in minutes.

`noise.py` has normal noise, autoregressive steps, a straight drift. Here a process's own speed has heavy tails
(Student's t, 5 degrees of freedom), steps are skewed (gamma) and share a moving average with their neighbours, one in
sixteen is slow by a Pareto share, a GPU warms up towards a limit, clocks may jump between two states (a telegraph
process), one worker in eight may be throttled, and a run may be shifted as a whole. Every trial carries the
measurements that a real one carries: phases of a step, matrix products, telemetry. Step times are of one worker; noise
is in standard deviations of logarithms.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.records import suite
from bench.records.bootstrap import Interval
from bench.records.result import Measurement, TrialResult
from bench.records.run import PlannedTrial, RunRecord
from reports.read import measurements
from reports.read.run import Configuration, Run, trials_frame
from tests.support.reports import synthetic

Floats = NDArray[np.float64]
PHASES = {"data": 0.004, "forward": 0.31, "backward": 0.66, "optimizer": 0.026}  # shares of a step
STEP_SEC, WATTS = 0.5, 300.0
SAMPLES, USEFUL = 8, 1000  # of every step, whatever its configuration: only time tells configurations apart


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A fleet. `processes` is how much processes of one configuration on one worker differ, `apart` the workers,
    `shift` whole runs. `modes` is how much slower the lower of two clock states is (0: one state), `throttled` how much
    slower one worker in eight (rounded up) is. `slow` is the share of slow steps.
    """

    suite: str = "quick"
    workers: int = 4
    repeats: int = 1
    processes: float = 0.005
    worker_spread: float = 0.01
    shift: float = 0.0
    modes: float = 0.0
    throttled: float = 0.0
    jitter: float = 0.004
    slow: float = 0.06
    warm_up: float = 0.006
    steps: int = 30
    has_measurements: bool = True  # beside steps: what `inv compare` reads, and a recommendation does not

    @functools.cached_property
    def plan(self) -> RunRecord:
        """The run's plan: every trial of the suite on every worker, `repeats` times."""
        names = [f"gpu-node-{number}" for number in range(1, self.workers + 1)]
        trials = suite(self.suite, "gpu", "/models/m", "/data/chats.jsonl")
        planned = [
            PlannedTrial(
                trial_id=f"{trial.trial_id}.{name}.{turn}", trial=replace(trial, measured_steps=self.steps), worker=name
            )
            for trial in trials
            for name in names
            for turn in range(self.repeats)
        ]
        where = {"workers": names, "profile": "gpu", "fleet_kind": "kubernetes", "provenance": {}}
        return synthetic.record(run_id="before", suite=self.suite, planned=planned, **where)

    @functools.cached_property
    def blank_results(self) -> tuple[TrialResult, ...]:
        """A result of every planned trial, its steps and measurements still to be drawn."""
        found = []
        for plan in self.plan.planned:
            told = {"device": "cuda", "gpu_name": "NVIDIA A10", "gpu_uuid": f"GPU-{plan.worker}"}
            one = synthetic.result(plan, exact=True, steps=self.steps, run_id="before", measurements=[])
            alike = replace(
                one.steps,
                samples=[SAMPLES] * self.steps,
                tokens=[2 * USEFUL] * self.steps,
                useful_tokens=[USEFUL] * self.steps,
            )
            found.append(
                replace(one, fingerprint=one.fingerprint | told, steps=alike, warmup=synthetic.Steps(), metrics=None)
            )
        return tuple(found)

    @functools.cached_property
    def blank_run(self) -> Run:
        """The run as loaded, with blank results."""
        label_of = {plan.trial_id: plan.trial.name for plan in self.plan.planned}
        return Run(
            folder=Path("/nonexistent"),
            record=self.plan,
            configurations=tuple(
                Configuration(label=name, planned=tuple(plan for plan in self.plan.planned if plan.trial.name == name))
                for name in dict.fromkeys(label_of.values())
            ),
            results=self.blank_results,
            label_of=label_of,
            trials=trials_frame({one.trial_id: one for one in self.blank_results}, label_of),
            measurements=measurements.frame({}, {}),
            rejected=(),
            missing=(),
        )

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(configuration.label for configuration in self.blank_run.configurations)

    def speeds(self, random: np.random.Generator) -> Floats:
        """The workers' own logarithms of time, without throttling."""
        return random.normal(0.0, self.worker_spread, self.workers)

    def times(self, random: np.random.Generator, slower: Floats, speeds: Floats) -> Floats:
        """Logarithms of step times of one run, shape (trials, steps), as planned; `slower` by configuration."""
        kinds, count = len(slower), len(self.plan.planned)
        shape = (kinds, self.workers, self.repeats)
        own = random.standard_t(5, shape) * self.processes / np.sqrt(5.0 / 3.0)
        middle = own + slower[:, None, None] + speeds[None, :, None] + random.normal(0.0, self.shift)
        if self.throttled:
            hot = random.permutation(self.workers)[: -(-self.workers // 8)]
            middle[:, hot] += self.throttled * random.uniform(0.7, 1.3, (kinds, len(hot), self.repeats))
        return middle.reshape(count, 1) + self.within_processes(random, count)

    def within_processes(self, random: np.random.Generator, count: int) -> Floats:
        """What happens within `count` processes, shape (count, steps)."""
        fresh = (random.gamma(4.0, 1.0, (count, self.steps + 2)) - 4.0) / 2.0
        smooth = (fresh[:, :-2] + fresh[:, 1:-1] + fresh[:, 2:]) / np.sqrt(3.0)
        steps = self.jitter * smooth
        slow = random.random(steps.shape) < self.slow
        steps = steps + np.where(slow, np.log1p(0.3 + np.minimum(random.pareto(3.0, steps.shape), 4.0)), 0.0)
        tau = random.uniform(3.0, 15.0, (count, 1))
        rise = self.warm_up * random.uniform(0.0, 1.0, (count, 1))
        steps = steps + rise * (1.0 - np.exp(-np.arange(self.steps) / tau))
        if self.modes:
            jumps = random.random(steps.shape) < 0.015
            state = (random.random((count, 1)) < 0.35) ^ (np.cumsum(jumps, axis=1) % 2 == 1)
            steps = steps + self.modes * state
        return np.asarray(steps)

    def median_log_time(self) -> float:
        """What the logarithm of a healthy process's median step comes to on average, its own speed aside."""
        return _median_log_time(replace(self, processes=0.0))

    def run(
        self,
        random: np.random.Generator,
        slower: Mapping[str, float] | None = None,
        speeds: Floats | None = None,
        run_id: str = "before",
    ) -> Run:
        """A run as loaded. `slower` maps a configuration to the logarithm of its time over the others'."""
        effects = np.array([(slower or {}).get(label, 0.0) for label in self.labels])
        logs = self.times(random, effects, self.speeds(random) if speeds is None else speeds)
        times = STEP_SEC * np.exp(logs)
        medians = np.median(times, axis=1)
        taken = _draw_measurements(random, medians) if self.has_measurements else [[] for _ in medians]
        results = tuple(
            replace(
                one,
                run_id=run_id,
                steps=replace(one.steps, step_time_sec=row.tolist()),
                measurements=own,
            )
            for one, row, own in zip(self.blank_results, times, taken, strict=True)
        )
        return replace(self.blank_run, record=replace(self.plan, run_id=run_id), results=results)


@functools.lru_cache(maxsize=64)
def _median_log_time(of: Scenario) -> float:
    many = of.within_processes(np.random.default_rng(99), 20_000)
    return float(np.median(many, axis=1).mean())


def _draw_measurements(random: np.random.Generator, medians: Floats) -> list[list[Measurement]]:
    """What a real training trial carries beside its steps, for each process."""
    count = len(medians)
    parts = {
        f"step_{name}_sec": medians * share * np.exp(random.normal(0.0, 0.01 if share < 0.05 else 0.003, count))
        for name, share in PHASES.items()
    }
    parts["matmul_tflops"] = 700.0 * np.exp(0.01 * random.standard_t(5, count))
    watts = WATTS * np.exp(random.normal(0.0, 0.01, count))
    found = []
    for number in range(count):
        own = [_measurement(name, float(values[number]), clock="device") for name, values in parts.items()]
        own += [
            _measurement(name, value, window="measure")
            for name, value in (("gpu_power_watts", float(watts[number])), ("gpu_sm_clock_mhz", 1695.0))
        ]
        found.append(own)
    return found


def _measurement(name: str, value: float, **context: Any) -> Measurement:
    spread = Interval(median=value, p10=value * 0.995, p90=value * 1.005, low=value * 0.998, high=value * 1.002, n=30)
    return Measurement(name=name, value=value, interval=spread, context=context)
