"""qlora: the training step that is measured.

step: the base model, the optimizer and one step
session: the stack and the device of one trial
recipes: how a step is put together: reference, stock, fast
"""
