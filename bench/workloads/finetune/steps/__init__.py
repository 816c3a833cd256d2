"""steps: one optimizer step over a global batch, divided among any number of ranks and micro-batches.

step: the gradient of all targets, clipping, the update
gradients: flat gradient buckets, summed over ranks while backward runs
group: collectives between the ranks
schedule: the learning rate of each step
"""
