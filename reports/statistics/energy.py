"""Energy from the GPU's sampled power over the measured window, and the throughput in that window."""

from bench.records.result import TrialResult
from reports.statistics.types import Process

ENERGY = "joules_per_1000_useful_tokens"
POWER = "gpu_power_watts"
WINDOW = "measure"


def joules_per_1000_useful_tokens(result: TrialResult, process: Process) -> float | None:
    """Return the GPU's energy for 1,000 useful tokens at elapsed throughput; None if its power was not sampled.

    A result of several ranks has the mean power of their GPUs. The host's energy is not included.
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
