"""The report of a training: its losses, its cost, and predicted against actual numbers.

summary: numbers of a training as titled lines, and the check of its adapter
score: the score of the training's answers in words and rows
goodput: paid worker time by use
loss_curves: figures: loss against tokens, hours and dollars; speed and power over time
comparison: two trainings compared by their held-out losses per example
page: page, Markdown, CSV, and the commands to continue with; the entry point is `build`
data_page: page of `inv data.check`
"""
