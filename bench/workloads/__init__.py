"""workloads: the module of each workload of `bench.records.workloads`, with its `measure(record, inputs, stops)`.

training: QLoRA steps, and their share of the GPU's matrix-product rate
hardware: matrix products, copies, and reads of the model folder
loading: loading a model from files onto the device
inference: generating answers to prompts
distributed: training steps on several ranks, and the cost of communication
distributed_rank: the program of each of these ranks
finetune: a fine-tuning on one or several ranks
quality: the held-out loss after a short training, to compare configurations
ranks: the launcher of their ranks, and the process of each rank
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from bench.records.workloads import WORKLOADS, Workload, WorkloadError

RECORDED_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class ProfiledSteps:
    """Measured steps, in seconds each, and `run_more`, which runs RECORDED_STEPS more and waits for them.

    `recipe` names the code path that computed them.
    """

    recipe: str
    seconds: list[float]
    run_more: Callable[[], None]


def load(workload: Workload) -> ModuleType:
    """Import a workload's module. Raises WorkloadError if it lacks a function that the registration promises."""
    module = importlib.import_module(workload.module)
    promised = {
        "measure": True,
        "follow": workload.is_ranked,
        "check_inputs": workload.has_training,
        "profiled_steps": workload.is_profiled,
    }
    for name, is_promised in promised.items():
        if is_promised and not callable(getattr(module, name, None)):
            raise WorkloadError(f"workload {workload.name!r}: {workload.module}.{name}: missing")
    return module


def check_modules() -> None:
    """Raise WorkloadError for a registered workload without a module."""
    for workload in WORKLOADS.values():
        if importlib.util.find_spec(workload.module) is None:
            raise WorkloadError(f"workload {workload.name!r}: {workload.module}: no such module")


check_modules()
