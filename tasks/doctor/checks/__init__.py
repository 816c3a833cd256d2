"""The checks by subject. Each module has its faults, the functions that look for them, and `CHECKS`.

machine   this machine: packages, programs, disk, clock
settings  the files, secrets, contradictions, what makes steps slow
tenancy   the tenancy
vm        the build VM: connection, engine, share, room, models
registry  name, login, the right to push
cluster   reachable, rights, namespace, quota, storage, DNS
nodes     what keeps pods from each node, by cause
pods      what is deployed
models    model and data as the workers see them
gpu       the GPU of this machine
runs      the newest run
"""
