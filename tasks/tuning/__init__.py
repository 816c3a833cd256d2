"""`inv tune`: search for the fastest configuration. `space` is pure.

tune        start, resume or plan a search: survey GPU, model and data, measure the best candidates, recommend one
space       the candidates, which fit into memory, and which are measured
loss_pairs  compare held-out losses with the reference, also for `inv bench --quality`
"""
