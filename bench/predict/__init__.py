"""predict: arithmetic on a model's config.json and a trial; nothing is measured.

chips: speed and memory of a training on every known chip
fit: the fastest configuration of a training that fits a GPU
flops: FLOP per token
memory: peak GPU memory
throughput: speed of a training's positions, and its forecast on this machine's GPU
"""
