"""Records that the operator's machine, the hosts and the report share. Standard library only, Python 3.10 to 3.13.

adapter: config of a plain LoRA adapter, its base, its check, and the sources of a merge
atomic_files: atomic writes, regular files, sha256
bootstrap: median, quantiles and bootstrap interval
checksummed: JSON records with a schema version and a checksum
forecast: a worker's forecast of a training
paths: names of files, folders and environment variables
quality: held-out losses against the reference (quality.json)
result: outcome and measurements of one trial (result.json)
run: plan of a run (run.json) and progress of a trial (progress.json)
schema: dataclasses from JSON
scratch_folders: temporary folders that are removed even after a killed process
score: score of a training's answers
student: Student's t, and the tail of the F distribution
status: statuses of trials, their causes, exit codes
sums_file: SHA256SUMS of a folder
training: data, settings and result of a fine-tuning (training.json)
trial: one configuration to measure, trial files, suites at the scale of a profile
units: bytes and shares as text
validation: checks of fields of records, and declarations of training settings
version: version of this software, which every record has
workloads: what runs a trial, with its suites and its treatment in plans and reports

The names below are imported on first use: every command needs `bench.records.status`, and `inv --list` no trial.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.records.trial import Trial, choose, read_trials, suite
    from bench.records.validation import TrialError

__all__ = ["Trial", "TrialError", "choose", "read_trials", "suite"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.trial"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
