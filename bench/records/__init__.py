"""Records that the operator's machine, the hosts and the report share. Standard library only, Python 3.10 to 3.13.

atomic_files: atomic writes, regular files, sha256
bootstrap: median, quantiles and bootstrap interval
checksummed: JSON records with a schema version and a checksum
paths: names of files, folders and environment variables
result: outcome and measurements of one trial (result.json)
run: plan of a run (run.json) and progress of a trial (progress.json)
schema: dataclasses from JSON
scratch_folders: temporary folders that are removed even after a killed process
setting: declaration of a training setting at the record's field
status: statuses of trials, their causes, exit codes
suites: suites as trials at the scale of a profile
training: settings of a fine-tuning, and its result (training.json)
training_data: data files of a training, and the report about them
trial: one configuration to measure, and trial files
validation: type and range checks for fields of records
workloads: what runs a trial, with its suites and its treatment in plans and reports

The names below are imported on first use: every command needs `bench.records.status`, and `inv --list` no trial.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.records.paths import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
    from bench.records.suites import SCALES, SUITE_NAMES, SuiteScale, suite
    from bench.records.trial import PROFILES, RECIPES, Trial, choose, read_trials
    from bench.records.validation import ALL_LINEAR, ATTENTION_PROJECTIONS, TrialError

_MODULES = {
    "paths": ("NODE_ADDRESS", "NODE_COUNT", "NODE_PORT", "NODE_RANK", "NODE_TOKEN"),
    "suites": ("SCALES", "SUITE_NAMES", "SuiteScale", "suite"),
    "trial": ("PROFILES", "RECIPES", "Trial", "choose", "read_trials"),
    "validation": ("ALL_LINEAR", "ATTENTION_PROJECTIONS", "TrialError"),
}

__all__ = [
    "ALL_LINEAR",
    "ATTENTION_PROJECTIONS",
    "NODE_ADDRESS",
    "NODE_COUNT",
    "NODE_PORT",
    "NODE_RANK",
    "NODE_TOKEN",
    "PROFILES",
    "RECIPES",
    "SCALES",
    "SUITE_NAMES",
    "SuiteScale",
    "Trial",
    "TrialError",
    "choose",
    "read_trials",
    "suite",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
