"""decode: kernels for one new token of a few sequences, in CUDA C++, compiled when they are first used.

nvrtc: a source file and its constants to a kernel that can be launched
products: products of few rows with NF4 weights (`products.cu`), their norm, gate, adapters and residual in them
attention: one token's rotation, its place in the cache, and attention over it (`attention.cu`)
"""
