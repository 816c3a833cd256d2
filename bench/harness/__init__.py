"""harness: one trial process.

record: what is known of the running trial; becomes its result
ends: signals, the deadline and exceptions as one of the ends
out_of_memory: the reason and the next configuration to try
progress: the log, progress.json and steps.jsonl
phases: a training step's time by phase
"""
