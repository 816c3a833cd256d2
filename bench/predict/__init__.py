"""predict: arithmetic on a model's config.json and a trial; nothing is measured.

flops: FLOP per token
memory: peak GPU memory
throughput: rate, padding and memory of a list of trials or of a training, before any starts
"""
