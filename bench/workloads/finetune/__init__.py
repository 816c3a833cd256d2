"""finetune: the fine-tuning itself, on one rank or several.

finetune: `measure`: starts the ranks, follows them, and writes training.json
job: what the ranks are told; story: what rank 0 tells
rank: what each rank runs; loop: the training, from the newest checkpoint to the end
material: examples, global batches, rows as tensors
evaluate: held-out loss with its interval, answers to prompts
steps: one optimizer step over a global batch
checkpoints: what is kept on the disk, and which of it a training goes on from
"""
