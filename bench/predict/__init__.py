"""predict: arithmetic on a model's config.json and a trial; nothing is measured.

flops: FLOP per token
footprint: peak GPU memory
forecast: what can be said of a training before it starts
survey: both for a list of trials, with the lengths of the samples
"""
