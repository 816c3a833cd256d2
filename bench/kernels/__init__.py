"""Kernels for a training step, except the library's matrix products, in PyTorch and Triton.

adamw8: AdamW with 8-bit state, one launch for all adapters
ahead: kernels compiled for a GPU that is not there
attention: causal attention within samples
groups: products of rows grouped by expert, and their sum for each token
int8: products with frozen weights in INT8
cache: Triton's cache, filled from a folder of compiled kernels
lora: the A side of LoRA adapters, with dropout
lora_out: the B side of LoRA adapters
loss: cross entropy over the frozen output layer, with its gradient
nf4: NF4 weights and their dequantization
norm: RMSNorm with the residual sum
pinned_gather: rows of a matrix in pinned host memory
rope: rotary position embedding
short_attention: causal attention for samples of a few hundred tokens
swiglu: the SwiGLU activation
triton_compat: Triton if it is installed

Each module states its formula, its shapes and the bytes moved. Functions named `..._reference` are plain PyTorch and
run on a CPU; the public function selects the kernel or the reference by its tensors' device. Both compute in float32
and round once, at the end. Shapes: T tokens of a micro-batch (its rows concatenated), H the model's width, D the width
of a head, R the LoRA rank.

No kernel adds numbers atomically, so equal inputs give equal bits: programs write partial sums to separate memory, and
these are added in a fixed order.
"""
