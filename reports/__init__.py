"""From a run's folder to a page one can decide on. Reads results/<run-id>/ alone; never talks to a host.

read: a run's folder to verified results and frames
statistics: steps to intervals, over one process, several processes, two configurations
summary: what the report says, as values and sentences
comparison: two or more runs, may they be compared and what differs
figures: the figures, and what draws them
training: the report of a training
exports: a run in the files of other tools
output: page, Markdown, CSV, JSON; `build` is the way in
text: numbers and names as text, escaped for Markdown and spreadsheets
"""
