"""distributed: the distributed trial.

distributed: `measure`, which turns the ranks' times into measurements
rank: the program of each rank
"""
