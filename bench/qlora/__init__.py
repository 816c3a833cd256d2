"""qlora: the measured training step.

base_models: how a model holds its tensors: in NF4, in which dtype, and which modules have adapters
step: stack and device of one trial, base model, adapters, optimizer and one training step
adamw8: the 8-bit optimizer of the recipe fast
experts: mixtures of experts in NF4
recipes: implementations of a step: reference, stock, fast
patch: the recipe fast for a peft model in another training loop
"""
