"""The report's values. Writers and figures read them and compute nothing themselves.

summary: dataclasses of a whole report, with a row per configuration; groups of similar failures
summarize: computation of a summary from a loaded run and prices
text: recommendation, finding, and the numbers of the first screen
loss_verdicts: whether a configuration is at the same loss
quality: sentences about held-out losses
warnings: cautions for the reader, one line per cause, the most important first
cost: conversion of speed to dollars
prices: loading and validation of the price table
tables: measurements as tables for readers
"""
