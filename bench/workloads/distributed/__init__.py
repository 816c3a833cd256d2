"""distributed: the distributed trial.

distributed: `measure`: starts the ranks and turns their times into measurements
torchrun: starts, watches and ends the ranks of one machine
rank: what each rank runs
machines: ranks on several machines
buckets: when each bucket of gradients is exchanged
efficiency: the arithmetic
"""
