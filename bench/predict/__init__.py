"""Predictions: FLOP, memory, the rate of many trials."""
