"""Products with frozen weights in INT8.

matmul: the INT8 product, with outlier columns and LoRA adapters in 16 bits
row_quant: INT8 activations and gradients with a scale per row, outlier columns separate
swiglu: SwiGLU and its gradient, from and to INT8
weight_quant: NF4 weights in INT8, as stored and transposed
"""
