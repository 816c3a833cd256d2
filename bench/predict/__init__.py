"""predict: arithmetic on a model's config.json and a trial; nothing is measured.

chips: speed and memory of a training on every known chip
fit: the fastest configuration of a training that fits a GPU
flops: FLOP per token
memory: peak GPU memory
throughput: rate, padding and memory of a list of trials or of a training, before any starts
"""
