"""A trial is one configuration to measure; a suite is a named list of trials.

This is what the operator's side and the bench have in common, beside `bench.records.result`: the names below, each in a
room of its own. The standard library alone, Python 3.10 to 3.13.
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
