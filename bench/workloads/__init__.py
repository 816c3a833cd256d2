"""workloads: one module for each kind of trial, with its `measure(record, inputs, stops)`.

training: QLoRA steps
mfu: their share of the GPU's matrix-product rate
hardware: matrix products, copies and disk
disk_io: read rate of the model folder
loading: loading a model from files onto the device
inference: generating answers to prompts
decoding: the default and the fast decoding path
decode_step: one decoding step of the fast path
fused_step: the same step for NF4 on a GPU
distributed: training steps on several ranks
finetune: a fine-tuning on one or several ranks
"""
