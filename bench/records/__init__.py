"""records: what the operator's side, the hosts and the report share. Standard library alone, Python 3.10 to 3.13.

trial: one configuration to measure; trial_files: trials from a JSON file
suites: named lists of trials, at the scale of a profile
training_data: which data files a training reads, and how
result: what one trial measured, and how it ended
run: the plan of a run, and the progress of a trial
sealed: records with a schema version and a checksum; schema: dataclasses from JSON
interval: median, quantiles and bootstrap interval
layout: names of files and folders
durable: atomic writes, sha256
gang: environment variables of a trial on several machines
"""

from bench.records.gang import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from bench.records.suites import SCALES, SUITES, Scale, suite
from bench.records.trial import ALL_LINEAR, ATTENTION_PROJECTIONS, PROFILES, RECIPES, Trial, TrialError
from bench.records.trial_files import choose, read_trials

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
    "Scale",
    "Trial",
    "TrialError",
    "choose",
    "read_trials",
    "suite",
]
