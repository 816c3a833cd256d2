"""Kernels for one new token of a few sequences, in CUDA C++, compiled at first use.

attention: rotation of one token, the cache update and attention over the cache (`attention.cu`)
nvrtc: compilation of a source file with constants, and kernel launches
products: products of few rows with NF4 weights (`products.cu`), fused with norm, gate, adapters and residual
"""
