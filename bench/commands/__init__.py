"""commands: `python -m bench COMMAND`.

cli: arguments, help and exit codes
trial_flags: a trial from command-line flags
run: one trial, from its file to its result
adapter: checks or merges an adapter
attempts: a training by itself, in the pods of a Kubernetes Job
profile: a training step's time by kind of kernel
selfcheck: does a trial run on this machine?
"""
