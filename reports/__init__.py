"""Reports on runs. They read only results/<run-id>/ and never contact a host.

read: load and verify a run's folder; data frames
statistics: intervals from step times: one process, several processes, two configurations
summary: the values of a benchmark's report, and its sentences
comparison: comparability of two or more runs, and their differences
figures: the figures and the drawing code
training: the values of a training's report, and its sentences
exports: a run in the file formats of other tools
output: page, Markdown, CSV and JSON; the entry point is `build`
document: the content of a report without its form
formatting: numbers and names as text, escaped for Markdown and spreadsheets
"""
