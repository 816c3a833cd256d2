"""Figures of a single workload.

distributed: scaling over several GPUs and the cost of communication
generic: the first quantities of a workload without a figure of its own
hardware: matrix products, copies and disk reads of the machine
inference: generated tokens per second
loading: time and memory to load the model
"""
