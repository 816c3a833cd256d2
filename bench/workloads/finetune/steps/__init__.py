"""steps: one optimizer step over a global batch, whatever ranks and micro-batches it is divided among.

step: the gradient of all its targets, clipping, the update
gradients: flat buckets, added up over ranks while backward still runs
group: this rank among the others
schedule: the learning rate of each step
"""
