"""kernels: everything in a training or decoding step except the library's matrix products, in PyTorch and in Triton.

nf4: NF4 weights, and their dequantization
lora, lora_out: the A and the B side of LoRA adapters
attention: causal attention within samples; short_attention: the same for short samples
norm: RMSNorm; rope: rotary position embedding; swiglu: the activation
loss: cross entropy over the frozen head; pinned_gather: rows of a matrix in the host's memory
adamw8: AdamW with 8-bit state, one launch for all adapters
int8: products of frozen weights in INT8
decode: one new token of a few sequences, in CUDA C++
triton_compat: Triton if it is installed

Each module states its formula, the shapes and the bytes moved. The functions named `..._reference` are plain PyTorch
and run on a CPU; the public function chooses by its tensors. Both round once, at their end: arithmetic inside is
float32. Shapes: T tokens of a micro-batch (its rows end to end), H the model's width, D a head's, R the LoRA rank.

No kernel adds numbers atomically, so equal inputs give equal bits: partial sums of several programs are written apart
and added in a fixed order. Only `decode` uses atomic operations at all, on counters that signal a block that all parts it
needs are ready.
"""
