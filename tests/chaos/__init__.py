"""Random commands under random faults, with checks that hold after every command: no false success, nothing lost, one
status for each trial, a correct exit code, nothing left running, bounded time and memory.
`python -m tests.chaos --seed 7 --minutes 30`

__main__        the command line
scenario        deploy, bench, collect over a cluster's pods, under faults or killed, and the checks
fault_injector  faults of a cluster
"""
