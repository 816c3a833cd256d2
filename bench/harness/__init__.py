"""harness: the process of one trial.

record: data of the running trial; becomes its result
termination: signals, the deadline and exceptions as a status
out_of_memory: the reason of a failed allocation and the next configuration to try
progress: the log, progress.json and steps.jsonl
phase_timer: a training step's time by phase
"""
