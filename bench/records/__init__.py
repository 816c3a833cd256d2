"""records: what the operator's side, the hosts and the report share. Standard library alone, Python 3.10 to 3.13.

trial: one configuration to measure, and trials from a JSON file
checks: types and ranges of a record's fields
training: how a fine-tuning trains, and training.json
suites: named lists of trials, at the scale of a profile
training_data: which data files a training reads, and how
result: what one trial measured, and how it ended
run: the plan of a run, and the progress of a trial
sealed: records with a schema version and a checksum; schema: dataclasses from JSON
interval: median, quantiles and bootstrap interval
layout: names of files, folders and environment variables
durable: atomic writes, files that end, sha256
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
