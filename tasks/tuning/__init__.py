"""`inv tune`: search for the best configuration. `space`, `search` and `pareto` are pure.

tune          start, resume or plan a search: survey GPU, model and data, list the candidates
space         the search space, and which candidates fit into memory
search        predict the rate of every candidate, choose the candidates to measure next, and decide when to stop
search_loop   run the waves and the finalists over the fleet, and print the answer
quality       compare held-out losses with the reference, also for `inv bench --quality`
pareto        the Pareto front of speed against memory
search_state  the search on disk
"""
