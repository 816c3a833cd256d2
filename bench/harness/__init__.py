"""harness: the process of one trial.

record: data of the running trial, its log, progress.json; becomes its result
termination: signals, the deadline and exceptions as a status; what to try after memory ran out
"""
