"""commands: `python -m bench COMMAND`.

cli: arguments, help and exit codes
overrides: a suite's trial with fields changed on the command line
run: one trial, from its file to its result
adapter: check, merge, chat and ready for an adapter
job_runner: a training in the pods of a Kubernetes Job, with restarts
profile: a step's time by kind of kernel
selfcheck: a two-step trial that checks the installation
"""
