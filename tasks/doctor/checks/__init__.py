"""Checks by subject. Each module has its faults, the functions that detect them, and `CHECKS`.

machine   this machine: packages, disk, clock, GPU
settings  secrets, contradictions, slow settings
oci       credentials of the tenancy
vm        the build VM: connection, engine, share, models and room; the registry: name, login, permission to push
cluster   connection, permissions, namespace, storage; findings on the nodes, state of the deployed pods
runs      model and data as seen by the workers, the newest run
"""
