"""Kernels of our own, one room each: a formula, the bytes it must move, a plain PyTorch reference it is tested against.

Modules whose name begins with an underscore need Triton, and are imported where a GPU computes.
"""
