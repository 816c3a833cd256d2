"""The report's values. Writers and figures read them and compute nothing themselves.

summary: dataclasses of a whole report, with a row per configuration
summarize: computation of a summary from a loaded run and prices
text: sentences: recommendation and finding
warnings: cautions for the reader, one line per cause, the most important first
headline: numbers of the first screen
cost: conversion of speed to dollars
prices: loading and validation of the price table
tables: measurements as tables for readers
"""
