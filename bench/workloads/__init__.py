"""kinds: one module for each kind of trial, with its `measure(record, inputs, stops)`.

training: QLoRA steps; mfu: their share of the GPU's matrix-product rate
hardware: matrix products, copies and disk; disk: reads of the model folder
loading: from files to a model on the device
inference: prompts to answers; decoding: its two paths; decode_step: one step of the fast path; fused_step: the same
    for NF4 on a GPU
distributed: training steps on several ranks
finetune: a fine-tuning on one rank or several
"""
