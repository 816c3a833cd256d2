"""Records that the operator's machine, the hosts and the report share. Standard library only, Python 3.10 to 3.13.

atomic_files: atomic writes, regular files, sha256
bootstrap: median, quantiles and bootstrap interval
checksummed: JSON records with a schema version and a checksum
paths: names of files, folders and environment variables
result: status and measurements of one trial (result.json)
run: plan of a run (run.json) and progress of a trial (progress.json)
schema: dataclasses from JSON
suites: named lists of trials at the scale of a profile
training: settings of a fine-tuning, and its result (training.json)
training_data: data files of a training, and the report about them
trial: one configuration to measure, and trial files
validation: type and range checks for fields of records
"""

from bench.records.paths import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from bench.records.suites import SCALES, SUITES, SuiteScale, suite
from bench.records.trial import ALL_LINEAR, ATTENTION_PROJECTIONS, PROFILES, RECIPES, Trial, choose, read_trials
from bench.records.validation import TrialError

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
    "SUITES",
    "SuiteScale",
    "Trial",
    "TrialError",
    "choose",
    "read_trials",
    "suite",
]
