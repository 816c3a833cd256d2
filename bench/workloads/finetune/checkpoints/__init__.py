"""checkpoints: what of a training is kept on the disk.

weights: adapters and optimizer state, copied on the device
keeper: written by a thread beside the training; the adapter that comes home
checkpoint: folders sealed by a manifest
resume: which one a training goes on from, and what was lost
"""
