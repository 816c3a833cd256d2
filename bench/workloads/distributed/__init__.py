"""distributed: the distributed trial.

distributed: `measure`, which starts the ranks and turns their times into measurements
torchrun: the torchrun process: starting, watching and ending the ranks of one machine
rank: the program of each rank
multi_node: ranks on several machines
buckets: the times of gradient bucket exchanges
efficiency: the arithmetic of efficiency and rates
"""
