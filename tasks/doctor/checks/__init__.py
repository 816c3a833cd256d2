"""Checks by subject. Each module has its faults, the functions that detect them, and `CHECKS`.

machine   this machine: packages, programs, disk, clock
settings  files, secrets, contradictions, slow settings
oci       credentials of the tenancy
vm        the build VM: connection, engine, share, room, models
registry  name, login, permission to push
cluster   connection, permissions, namespace, quota, storage, DNS
nodes     findings on the nodes, by cause; state of the deployed pods
bench     model and data as seen by the workers, the GPU of this machine
runs      the newest run
"""
