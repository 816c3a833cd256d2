"""`inv tune`: search for the best configuration. Pure, but for survey, waves, record and printed.

verbs      signature and help
tune       the search from plan to answer
survey     observe GPU, model and data; plan the candidates
space      the candidates, and which of them fit into memory
surrogate  the expected rate of every candidate
search     which candidates to measure next, and when to stop
waves      runs the waves and the finalists over the fleet
answer     the front of speed against memory
record     the search on disk
printed    plan and answer on the terminal
"""
