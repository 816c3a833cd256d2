"""workloads: the module of each workload of `bench.records.workloads`, with its `measure(record, inputs, stops)`.

training: QLoRA steps, and their share of the GPU's matrix-product rate
hardware: matrix products and copies
loading: loading a model from files onto the device
inference: generating answers to prompts
distributed: training steps on several ranks, and the cost of communication
distributed_rank: the program of each of these ranks
finetune: a fine-tuning on one or several ranks
quality: the held-out loss after a short training, to compare configurations
ranks: the launcher of their ranks, and the process of each rank
"""

import importlib
from types import ModuleType

from bench.records.workloads import Workload


def load(workload: Workload) -> ModuleType:
    """Import a workload's module."""
    return importlib.import_module(workload.module or f"bench.workloads.{workload.name}")
