"""finetune: the fine-tuning itself, on one rank or several.

finetune: `measure`: starts the ranks, follows them, and writes training.json
"""
