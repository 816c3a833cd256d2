"""kinds: the figures of one kind of trial each.

distributed: several GPUs, and what talking costs
hardware: what the GPU reaches by itself
inference: generated tokens per second
loading: time and memory to load the model
"""
