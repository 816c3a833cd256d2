"""The report of a training: what was trained, what it cost, and predicted beside actual.

told: the figures of a training as titled lines
curves: loss and held-out loss against useful tokens, hours and dollars, as a drawing
page: page, Markdown and CSV; `build` is the way in
"""
