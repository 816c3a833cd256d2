"""Comparison of two or more runs.

comparability: conditions that must be equal, by name
compare: rows of both runs' configurations, with corrected verdicts
samples: a run's samples of each quantity
tests: hypothesis tests, corrected for multiple comparisons
export: a comparison as compare.json and as a data frame
"""
