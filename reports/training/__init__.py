"""The report of a training: what was trained, what it cost, and predicted beside actual.

told: the figures of a training as titled lines
course: speed and power over the hours, checkpoints and restarts marked
curves: loss and held-out loss against useful tokens, hours and dollars, as a drawing
again: the commands that go on with a training, repeat it, or use what it made
beside: two trainings, their held-out losses example by example
page: page, Markdown and CSV; `build` is the way in
"""
