"""The imported stack and the device of a trial that computes in this process."""

from dataclasses import dataclass

from bench import torch_stack
from bench.harness.record import Record
from bench.harness.termination import StopSignals
from bench.machine import fingerprint, preflight
from bench.qlora.step import Placement, choose_placement


@dataclass(frozen=True, kw_only=True)
class TorchSession:
    """The imported stack and the device it computes on."""

    modules: torch_stack.Stack
    placement: Placement


def open_session(record: Record, stops: StopSignals) -> TorchSession:
    """Import the stack, choose the device, and put both into the record's fingerprint."""
    with record.timed("import"):
        modules = torch_stack.load()
        preflight.check(modules, record.trial)
        placement = choose_placement(modules)
    stops.check()
    record.fingerprint.update(fingerprint.device_facts(modules.torch))
    record.fingerprint["compute_dtype"] = str(placement.compute_dtype).removeprefix("torch.")
    processor = record.fingerprint["gpu_name"] or record.fingerprint["cpu_model"]
    record.log(f"device {placement.device} in {record.fingerprint['compute_dtype']}: {processor}")
    return TorchSession(modules=modules, placement=placement)
