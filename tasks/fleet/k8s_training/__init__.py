"""Trainings that a Kubernetes Job runs by itself (`inv train --job`), found again by their run.

reach  a pod through which the shared volume is read
learn  what the volume says of a training, taken into the run's ledger
stop   the Job in the cluster, ended
"""
