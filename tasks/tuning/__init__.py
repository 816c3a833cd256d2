"""`inv tune`: search for the best configuration. `space`, `surrogate` and `pareto` are pure.

commands      signature and help of the task
tune          start, resume or plan a search
planning      have one worker survey GPU, model and data; list the candidates
space         the search space, and which candidates fit into memory
surrogate     predict the rate of every candidate (a Gaussian process)
search        choose the candidates to measure next, and decide when to stop
search_loop   run the waves and the finalists over the fleet
pareto        the Pareto front of speed against memory
search_state  the search on disk
output        plan and answer on the terminal
"""
