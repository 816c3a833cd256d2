"""distributed: the distributed trial.

distributed: `measure`, which turns the ranks' times into measurements
rank: the program of each rank
buckets: the times of gradient bucket exchanges
efficiency: the arithmetic of efficiency and rates
"""
