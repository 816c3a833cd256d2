"""eight_bits: products of frozen weights in INT8.

rows: activations and gradients in 8 bits, outlier columns apart
weights: NF4 weights in 8 bits, as they are and transposed
product: the product, with what stands beside it in 16 bits
blocks: its result in 8 bits
swiglu: the activation and its gradient, from and to 8 bits
"""
