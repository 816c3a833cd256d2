"""Comparison of two or more runs.

comparability: conditions that must be equal, by name
compare: rows of both runs' configurations, with corrected verdicts; compare.json
tests: samples of each quantity, and hypothesis tests, corrected for multiple comparisons
"""
