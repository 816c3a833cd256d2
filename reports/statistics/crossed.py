"""Rates of configurations of which each ran on a few of the workers, without those workers' own speeds.

The logarithm of a rate is the sum of its configuration's and its worker's part and of noise (least squares). So a
configuration that ran on two fast workers is not ranked above one that ran on two slow ones, and its rate is that of
the mean worker. The interval counts the noise and the differences between the workers, with Student's t of at most the
number of workers minus one degrees of freedom.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from reports.statistics import per_config, student
from reports.statistics.per_config import Mean, Sample
from reports.statistics.per_process import CONFIDENCE


def adjusted_means(samples: Mapping[str, Sequence[Sample]]) -> dict[str, Mean]:
    """Map each configuration to the logarithm of its rate on the mean worker.

    {} if the processes do not show it: a single configuration or worker, no repeated process, or configurations that
    no chain of shared workers connects.
    """
    workers = list(dict.fromkeys(sample.worker for values in samples.values() for sample in values))
    logs = [(row, sample) for row, values in enumerate(samples.values()) for sample in values]
    n_rows, n_workers, rank = len(samples), len(workers), len(samples) + len(workers) - 1
    if min(n_rows, n_workers) < 2 or len(logs) <= rank:
        return {}
    design = np.zeros((len(logs), n_rows + n_workers))
    for index, (row, sample) in enumerate(logs):
        design[index, row] = design[index, n_rows + workers.index(sample.worker)] = 1.0
    if np.linalg.matrix_rank(design) < rank:
        return {}
    solve, values = np.linalg.pinv(design), np.array([sample.log for _, sample in logs])
    parts = solve @ values
    df = float(len(logs) - rank)
    noise = float(np.square(values - design @ parts).sum()) / df
    between = float(parts[n_rows:].var(ddof=1)) / n_workers
    means = {}
    for row, (label, own) in enumerate(samples.items()):
        weights = solve[row] + solve[n_rows:].mean(axis=0)
        variance = noise * float(weights @ weights)
        total = variance + between
        denominator = variance**2 / df + between**2 / (n_workers - 1)
        own_df = min(total**2 / denominator if denominator > 0 else df, n_workers - 1.0)
        floor = math.sqrt(sum(sample.error**2 for sample in own)) / len(own)
        half = max(math.sqrt(total) * student.quantile(CONFIDENCE, round(own_df, 2)), floor * per_config.NORMAL)
        means[label] = Mean(
            value=float(weights @ values),
            error=math.sqrt(total),
            df=own_df,
            floor=floor,
            half=half,
            over="workers",
            units=n_workers,
        )
    return means
