"""checkpoints: a training's checkpoints on the disk.

weights: adapters and optimizer state, copied on the device
checkpoint_manager: checkpoints written by a thread during the training; the final adapter
checkpoint: checkpoint folders with a manifest of checksums
resume: the checkpoint that a training resumes from, and the lost work
"""
