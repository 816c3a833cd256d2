"""From settings to a machine that can be talked to; its failures as exit codes.

workers   the fleet's hosts and their commands: local processes or pods
asking    how long a worker that does not answer is asked again before a run
cluster   the Kubernetes cluster
pushed    the image that pods run, by its digest
buildvm   the build VM, over SSH
registry  the registry of the settings, asked by the build VM
secrets   passwords and tokens
typed     what a person types unseen
"""
