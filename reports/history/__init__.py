"""All runs of a results folder over time, for `inv runs --history`.

series: each configuration's speed and each training's loss run by run, with changed conditions and steps
page: the page, the figure and the table of numbers
"""
