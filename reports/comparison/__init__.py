"""Comparison of runs.

comparability: conditions that must be equal, by name
compare: rows of all runs' configurations, with corrected verdicts; compare.json
hypotheses: tests of differences, corrected for multiple comparisons and for the day
"""
