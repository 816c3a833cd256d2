"""Trainings that run as a Kubernetes Job without an operator (`inv train --job`).

volume_reader  open a pod through which the shared volume can be read
sync_ledger    copy a training's state from the volume into the run's ledger
cancel         find, check and delete the Job
"""
