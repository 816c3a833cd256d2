"""finetune: the fine-tuning workload, on one or several ranks.

finetune: `measure`, which starts and follows the ranks and writes training.json
rank_spec: the file that the parent passes to its ranks
training_log: rank 0's reports, written to the record, steps.jsonl and training.json
rank: the program of each rank
trainer: the training loop, from the newest checkpoint to the end
training_set: examples, global batches, rows as tensors
evaluate: held-out loss with its interval, answers to prompts
steps: one optimizer step over a global batch
checkpoints: writing, verifying and resuming from checkpoints
"""
