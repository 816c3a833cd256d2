"""What a training step is made of besides matrix products: one room per idea.

Each room says its formula, the shapes and the bytes moved, and holds the same function twice: in plain PyTorch
(`..._reference`), which anyone can read and which runs on a CPU, and as a Triton kernel, which runs on the GPU. The
public function takes the one that fits its tensors. Both round once, at their end: arithmetic inside is float32.

Shapes throughout: T tokens of a micro-batch (its rows end to end), H the model's width, D a head's, R the LoRA rank.

No kernel adds numbers atomically, so equal inputs give equal bits: partial sums of several programs are written apart
and added in a fixed order. Only `nf4_linear` uses an atomic operation at all, on the counter of finished programs that
tells the last one to add them.
"""
