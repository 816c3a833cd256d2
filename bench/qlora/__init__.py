"""qlora: the measured training step.

step: stack and device of one trial, base model, adapters, optimizer and one training step
adamw8: the 8-bit optimizer of the recipe fast
recipes: implementations of a step: reference, stock, fast
patch: the recipe fast for a peft model in another training loop
"""
