"""finetune: the fine-tuning workload, on one or several ranks.

finetune: `measure`, which starts and follows the ranks, and writes rank 0's reports to the record and training.json
rank: the program of each rank
trainer: the training loop, from the newest checkpoint to the end
training_set: examples, global batches, rows as tensors
derived: settings that follow from the data where the user has set none
evaluate: held-out loss with its interval
answers: greedy answers in batches
score: scores of answers against the data's own
score_program: the process of a user's score file
scoring: answers and scores of a training, before and after, on all ranks
steps: one optimizer step over a global batch, divided among any number of ranks and micro-batches
checkpoint: checkpoint folders with a manifest of checksums
checkpoint_manager: checkpoints written by a thread during the training; the final adapter
folder_lock: one attempt at a time in a checkpoints' folder
resume: the checkpoint that a training resumes from, and the lost work
"""
