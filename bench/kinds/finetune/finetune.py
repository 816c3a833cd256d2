"""The fine-tuning of a trial: starts its ranks, follows them, and writes training.json."""

from bench.data.inputs import InputError, Inputs
from bench.harness.ends import Stops
from bench.harness.record import Record
from bench.kinds.distributed.machines import Machines
from bench.records import Trial


def measure(_record: Record, _inputs: Inputs, _stops: Stops) -> None:
    raise InputError("kind: finetune: this version plans fine-tunings and cannot run one yet")


def follow(_trial: Trial, _machines: Machines, _stops: Stops) -> int:
    raise InputError("kind: finetune: this version plans fine-tunings and cannot run one yet")
