"""Simulated fleets, to validate the report: loaded runs, thousands in minutes.

A process's speed has heavy tails (Student's t, 5 degrees of freedom), steps are skewed (gamma) with a moving average
over neighbours, one in sixteen is slower by a Pareto-distributed share, a GPU warms up towards a limit, clocks may jump
between two states (a telegraph process), one worker in eight may be throttled, and a whole run may be shifted. Noise is
in standard deviations of logarithms.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.records import suite
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial, RunRecord
from reports.read.loaded_run import Configuration, Run
from reports.statistics.per_process import ProcessSteps
from tasks.fleet.plan import plan_trials
from tests.support.reports import synthetic
from tests.support.reports.drifts import DRIFTS, Schedule

Floats = NDArray[np.float64]
STEP_SEC = 0.5
TRIAL_SEC = 40.0
SAMPLES, USEFUL = 8, 1000  # the same in every step, so that configurations differ only in time


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
class Scenario:
    """A simulated fleet.

    `processes` is the spread of processes of one configuration on one worker, `worker_spread` that of workers, `shift`
    that of whole runs. `modes` is the slowdown in the lower of two clock states (0: one state), `throttled` that of one
    worker in eight (rounded up). `slow` is the share of slow steps, `slow_second` that of the second
    configuration's. `drift` is one of DRIFTS, over trials in the order of `plan_trials`.
    """

    suite: str = "quick"
    configurations: int | None = None  # the first ones of the suite; None: all
    workers: int = 4
    repeats: int = 1
    processes: float = 0.005
    worker_spread: float = 0.01
    shift: float = 0.0
    modes: float = 0.0
    throttled: float = 0.0
    jitter: float = 0.004
    slow: float = 0.06
    slow_second: float | None = None
    drift: str = "none"
    warm_up: float = 0.006
    steps: int = 30

    @functools.cached_property
    def plan(self) -> RunRecord:
        """Plan of the run: every trial of the suite on every worker, `repeats` times."""
        names = [f"gpu-node-{number}" for number in range(1, self.workers + 1)]
        planned = self.ordered("")
        order = list(dict.fromkeys(plan.trial.trial_id for plan in planned))
        planned.sort(key=lambda each: (order.index(each.trial.trial_id), each.worker or "", each.trial_id))
        fleet_fields = {"workers": names, "profile": "gpu", "fleet_kind": "kubernetes", "provenance": {}}
        return synthetic.record(run_id="before", suite=self.suite, planned=planned, **fleet_fields)

    def ordered(self, seed: str) -> list[PlannedTrial]:
        """Return the planned trials in their order."""
        trials = suite(self.suite, "gpu", "/models/m", "/data/chats.jsonl")[: self.configurations]
        names = [f"gpu-node-{number}" for number in range(1, self.workers + 1)]
        return plan_trials(
            [replace(trial, measured_steps=self.steps, recipe="stock") for trial in trials],
            names,
            self.repeats,
            seed=seed,
        )

    @functools.cached_property
    def blank_results(self) -> tuple[TrialResult, ...]:
        """Result of every planned trial, without step times and measurements."""
        results = []
        for plan in self.plan.planned:
            device = {"device": "cuda", "gpu_name": "NVIDIA A10", "gpu_uuid": f"GPU-{plan.worker}"}
            result = synthetic.result(plan, exact=True, steps=self.steps, run_id="before", measurements=[])
            equal_steps = replace(
                result.steps,
                samples=[SAMPLES] * self.steps,
                tokens=[2 * USEFUL] * self.steps,
                useful_tokens=[USEFUL] * self.steps,
            )
            results.append(
                replace(
                    result,
                    fingerprint=result.fingerprint | device,
                    steps=equal_steps,
                    warmup=synthetic.Steps(),
                    metrics=None,
                )
            )
        return tuple(results)

    @functools.cached_property
    def blank_run(self) -> Run:
        """Loaded run with `blank_results`."""
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
            rejected=(),
            missing=(),
        )

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(configuration.label for configuration in self.blank_run.configurations)

    def speeds(self, random: np.random.Generator) -> Floats:
        """Draw the workers' logarithms of time, without throttling."""
        return random.normal(0.0, self.worker_spread, self.workers)

    def times(self, random: np.random.Generator, slower: Floats, speeds: Floats) -> Floats:
        """Draw logarithms of step times of one run, shape (trials, steps), as planned; `slower` by configuration."""
        kinds, count = len(slower), len(self.plan.planned)
        shape = (kinds, self.workers, self.repeats)
        process_offsets = random.standard_t(5, shape) * self.processes / np.sqrt(5.0 / 3.0)
        centers = process_offsets + slower[:, None, None] + speeds[None, :, None] + random.normal(0.0, self.shift)
        if self.throttled:
            throttled = random.permutation(self.workers)[: -(-self.workers // 8)]
            centers[:, throttled] += self.throttled * random.uniform(0.7, 1.3, (kinds, len(throttled), self.repeats))
        return centers.reshape(count, 1) + self.within_processes(random, count)

    def turns(self, seed: str) -> NDArray[np.int64]:
        """Return the number of trials that each trial's worker runs before it, as planned with this seed."""
        before: dict[str | None, int] = {}
        turn_of = {}
        for plan in self.ordered(seed):
            turn_of[plan.trial_id] = before.get(plan.worker, 0)
            before[plan.worker] = turn_of[plan.trial_id] + 1
        return np.array([turn_of[plan.trial_id] for plan in self.plan.planned])

    def drifts(self, random: np.random.Generator, turns: NDArray[np.int64]) -> Floats:
        """Draw the logarithms of slowdown of every step; the last part of a trial's time measures."""
        workers = np.array([self.plan.workers.index(plan.worker or "") for plan in self.plan.planned])
        per_worker = len(self.labels) * self.repeats
        inside = np.linspace(1.0 - self.steps * STEP_SEC / TRIAL_SEC, 1.0, self.steps)
        times = (turns[:, None] + inside) / per_worker
        return DRIFTS[self.drift](random, Schedule(times, workers[:, None], self.workers, per_worker))

    def within_processes(self, random: np.random.Generator, count: int) -> Floats:
        """Draw the noise within `count` processes, shape (count, steps)."""
        fresh = (random.gamma(4.0, 1.0, (count, self.steps + 2)) - 4.0) / 2.0
        smooth = (fresh[:, :-2] + fresh[:, 1:-1] + fresh[:, 2:]) / np.sqrt(3.0)
        steps = self.jitter * smooth
        shares = np.full((count, 1), self.slow)
        if self.slow_second is not None:
            shares[self.workers * self.repeats : 2 * self.workers * self.repeats] = self.slow_second
        slow = random.random(steps.shape) < shares
        steps = steps + np.where(slow, np.log1p(0.3 + np.minimum(random.pareto(3.0, steps.shape), 4.0)), 0.0)
        tau = random.uniform(3.0, 15.0, (count, 1))
        rise = self.warm_up * random.uniform(0.0, 1.0, (count, 1))
        steps = steps + rise * (1.0 - np.exp(-np.arange(self.steps) / tau))
        if self.modes:
            jumps = random.random(steps.shape) < 0.015
            state = (random.random((count, 1)) < 0.35) ^ (np.cumsum(jumps, axis=1) % 2 == 1)
            steps = steps + self.modes * state
        return np.asarray(steps)

    def process(self, random: np.random.Generator, speed: float = 0.0) -> Floats:
        """Draw the logarithms of one process's step times, on a worker of this speed."""
        own = float(random.standard_t(5)) * self.processes / np.sqrt(5.0 / 3.0)
        return np.asarray(speed + own + self.within_processes(random, 1)[0])

    def median_log_time(self) -> float:
        """Estimate the mean logarithm of a healthy process's median step, without the process's own speed."""
        return _median_log_time(replace(self, processes=0.0))

    def elapsed_log_time(self) -> float:
        """Estimate the logarithm of a healthy process's mean step, without the process's own speed."""
        return _elapsed_log_time(replace(self, processes=0.0))

    def run(
        self,
        random: np.random.Generator,
        slower: Mapping[str, float] | None = None,
        speeds: Floats | None = None,
        run_id: str = "before",
    ) -> Run:
        """Draw a loaded run. `slower` maps a configuration to the logarithm of its time relative to the others'."""
        effects = np.array([(slower or {}).get(label, 0.0) for label in self.labels])
        logs = self.times(random, effects, self.speeds(random) if speeds is None else speeds)
        turns = self.turns(str(random.integers(1 << 30)))
        times = STEP_SEC * np.exp(logs + self.drifts(random, turns))
        clocks = random.uniform(0.0, 1e6, self.workers)  # every machine has its own
        results = tuple(
            replace(
                result,
                run_id=run_id,
                started_at=_clock_time(turn * TRIAL_SEC + clocks[self.plan.workers.index(result.worker or "")]),
                phases={"load": TRIAL_SEC - self.steps * STEP_SEC, "measure": self.steps * STEP_SEC},
                steps=replace(result.steps, step_time_sec=row.tolist()),
            )
            for result, row, turn in zip(self.blank_results, times, turns.tolist(), strict=True)
        )
        return replace(self.blank_run, record=replace(self.plan, run_id=run_id), results=results)


def _clock_time(seconds: float) -> str:
    return (datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")


@functools.lru_cache(maxsize=64)
def _median_log_time(scenario: Scenario) -> float:
    samples = scenario.within_processes(np.random.default_rng(99), 20_000)
    return float(np.median(samples, axis=1).mean())


@functools.lru_cache(maxsize=64)
def _elapsed_log_time(scenario: Scenario) -> float:
    return float(np.log(np.exp(scenario.within_processes(np.random.default_rng(99), 20_000)).mean()))
