"""Energy from what was sampled: watts of the GPU over the measured window, and how fast it worked meanwhile."""

from bench.records.result import TrialResult
from reports.statistics.types import Process

ENERGY = "joules_per_1000_useful_tokens"
POWER = "gpu_power_watts"
WINDOW = "measure"


def joules_per_1000_useful_tokens(result: TrialResult, process: Process) -> float | None:
    """The GPU's energy for 1,000 useful tokens, by elapsed throughput; None where its power was not sampled in that
    window. A result of several ranks has the mean of their GPUs; the host's own energy is in none of them.
    """
    watts = next(
        (
            measurement.value
            for measurement in result.measurements
            if measurement.name == POWER and measurement.context.get("window") == WINDOW
        ),
        None,
    )
    return None if watts is None or watts <= 0 else 1000.0 * watts / process.elapsed_useful_tokens_per_sec
