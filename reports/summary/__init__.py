"""The values of a benchmark's report, and its words. Writers and figures read them and compute nothing themselves.

summary: dataclass of a whole report
rows: a row per configuration; groups of similar failures
summarize: computation of a summary from a loaded run and prices
decisions: the choice of the recommendation
warnings: causes of doubt as codes with numbers, one per cause, the most important first
sentences: the sentences about all of these, and the method
loss_verdicts: whether a configuration is at the same loss
cost: conversion of speed to dollars
prices: loading and validation of the price table
tables: measurements as tables for readers
"""
