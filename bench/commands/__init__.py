"""commands: `python -m bench COMMAND`.

cli: arguments, help and exit codes; a trial changed by `--set`; requests about an adapter
run: one trial, from its file to its result
job_runner: a training in the pods of a Kubernetes Job, with restarts
kernels: what a training can launch, compiled for GPUs that need not be there
selfcheck: a two-step trial that checks the installation
"""
