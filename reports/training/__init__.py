"""The report of a training: its losses, its cost, and predicted against actual numbers.

summary: numbers of a training as titled lines
adapter_checks: check of the adapter by `inv adapter.check`
timeline: figure of speed and power over time, with checkpoints and restarts
loss_curves: figure of loss and held-out loss against useful tokens, and against hours and dollars
next_commands: commands that resume a training, repeat it, or use its adapter
comparison: two trainings compared by their held-out losses per example
page: page, Markdown and CSV; the entry point is `build`
data_page: page of `inv data.check`
"""
